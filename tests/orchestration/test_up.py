"""`walgate up`: it says where its page is, mends itself, and leaves nothing however it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_dagster import PROGRAMS, READY_DEADLINE_S, RunningDagster, find_free_port
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import PostgresServer
from tests.walgate_command import run_walgate

START = Callable[..., RunningDagster]
SENSORS = ("keep_replicating", "merge_staged_changes")


@pytest.fixture(scope="module")
def dagster(
    postgres18: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningDagster]:
    """Lend one `walgate up` with a run that streams, to all tests that leave it running.

    Its log is JSON; that of the stacks which tests start for themselves is not.
    """
    with lend_database(postgres18) as database:
        pipeline = Pipeline(database, tmp_path_factory.mktemp("up"))
        dagster = RunningDagster(pipeline, options=("--log", "json"))
        try:
            dagster.wait_until_ready()
            dagster.wait_until_streaming()
            yield dagster
        finally:
            dagster.end()


@pytest.mark.core
def test_a_page_is_up_once_its_address_is_printed(dagster: RunningDagster) -> None:
    assert dagster.answers()
    printed = dagster.child.output()
    for fact in (dagster.url, str(dagster.pipeline.root), dagster.pipeline.slot, "Ctrl-C"):
        assert fact in printed


def test_a_page_listens_on_loopback_alone(dagster: RunningDagster) -> None:
    web = dagster.find_program("web")
    assert web is not None
    listening = [c.laddr for c in web.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert listening == [("127.0.0.1", dagster.port)]


def test_a_run_logs_in_the_form_that_the_command_was_given(dagster: RunningDagster) -> None:
    (run,) = dagster.read_runs("replicate")
    storage = dagster.state_folder / "dagster" / "storage" / run["runId"]

    def find_line() -> str | None:
        """Give the line by which capture reports its start, among lines of Dagster's own."""
        written = [line for log in storage.rglob("*.err") for line in log.read_text().splitlines()]
        return next((w for w in written if "started" in w and dagster.pipeline.slot in w), None)

    found = wait_for(find_line, READY_DEADLINE_S, "the start of capture in the log of its run")
    assert found is not None
    line = json.loads(found)
    assert (line["level"], line["noun"], line["verb"]) == ("info", "capture", "started")


def test_a_second_up_of_the_same_folder_is_refused(dagster: RunningDagster) -> None:
    answer = run_walgate("up", folder=dagster.pipeline.folder)
    (complaint,) = answer.complaints
    assert answer.exit_code == 3
    assert f"process {dagster.child.pid} runs" in complaint
    assert "fix: stop it" in complaint
    assert dagster.answers()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_killed_program_comes_back_by_itself(dagster: RunningDagster, name: str) -> None:
    victim = dagster.find_program(name)
    assert victim is not None
    (run,) = dagster.read_runs("replicate")
    before = {sensor: dagster.read_ticks(sensor)[0]["timestamp"] for sensor in SENSORS}
    victim.kill()
    wait_for(
        lambda: (program := dagster.find_program(name)) and program.pid != victim.pid,
        READY_DEADLINE_S,
        f"{name} to be started again",
    )
    wait_for(dagster.answers, READY_DEADLINE_S, "the page to show the pipeline")
    wait_for(
        lambda: all(_has_good_tick(dagster, s, after=before[s] + 1) for s in SENSORS),
        READY_DEADLINE_S,
        "both sensors to tick again",
    )
    # The run that was under way went on.
    assert [r["runId"] for r in dagster.read_runs("replicate")] == [run["runId"]]
    assert dagster.pipeline.slot_facts()["pid"] is not None


def test_a_table_that_appears_gets_its_asset(dagster: RunningDagster) -> None:
    dagster.pipeline.database.execute("create table appeared (id int primary key)")
    dagster.pipeline.database.execute("insert into appeared values (1)")

    def has_asset() -> bool:
        nodes = dagster.query("{ assetNodes { assetKey { path } } }")["assetNodes"]
        return ["tables", "public", "appeared"] in [node["assetKey"]["path"] for node in nodes]

    wait_for(has_asset, READY_DEADLINE_S, "the new table's asset")
    assert len(dagster.read_runs("replicate")) == 1


def test_a_run_whose_code_server_was_killed_drains_at_the_end(dagster: RunningDagster) -> None:
    """The last of the shared stack: it is stopped here, after every kill above."""
    database, pipeline = dagster.pipeline.database, dagster.pipeline
    database.execute("create table late (id int primary key)")
    database.execute("insert into late select generate_series(1, 1000)")
    (run,) = dagster.read_runs("replicate")
    assert dagster.finish() == 0, dagster.describe()
    assert dagster.find_left() == []
    assert pipeline.slot_facts()["pid"] is None
    # What was not staged yet comes with the next capture; nothing comes twice.
    pipeline.catch_up()
    pipeline.require_truth()
    again = RunningDagster(pipeline, WALGATE_DAGSTER__AUTOSTART="false")
    try:
        again.wait_until_ready()
        statuses = {r["runId"]: r["status"] for r in again.read_runs("replicate")}
        assert statuses == {run["runId"]: "CANCELED"}
    finally:
        again.end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_after_a_signal(start_dagster: START, number: signal.Signals) -> None:
    dagster = start_dagster()
    dagster.wait_until_ready()
    assert dagster.finish(number) == 0, dagster.describe()
    assert dagster.find_left() == []
    assert "nothing is left running" in dagster.child.output()


def test_nothing_is_left_after_a_signal_during_the_start(start_dagster: START) -> None:
    dagster = start_dagster()
    wait_for(dagster.find_left, READY_DEADLINE_S, "the first process of the stack")
    assert dagster.finish(signal.SIGINT) == 0, dagster.describe()
    assert dagster.find_left() == []
    assert dagster.url not in dagster.child.output()


def test_a_start_after_a_kill_ends_what_was_left_and_nothing_else(
    start_dagster: START, tmp_path: Path
) -> None:
    killed = start_dagster()
    killed.wait_until_ready()
    killed.wait_until_streaming()
    killed.child.send(signal.SIGKILL)
    killed.child.wait()
    left = killed.find_left()
    # The three, the server of the code and the run's worker.
    assert len(left) >= len(PROGRAMS) + 2
    stranger = ChildProcess(
        ["sleep", "600"],
        log=tmp_path / "stranger.log",
        environment=os.environ | {"WALGATE_STACK": f"{killed.state_folder}-of-another"},
    )
    try:
        dagster = start_dagster(port=str(killed.port))
        dagster.wait_until_ready()
        assert not set(left) & set(dagster.find_left())
        assert stranger.is_running
        # The run is no one's any more: it is recorded so, and the next one streams.
        dagster.wait_until_streaming()
        runs = dagster.read_runs("replicate")
        assert [run["status"] for run in runs[1:]] == ["FAILURE"]
        assert dagster.finish() == 0, dagster.describe()
    finally:
        stranger.kill()


def test_a_pipeline_that_does_not_load_is_one_line(pipeline: Pipeline) -> None:
    log = pipeline.root / "staging" / "relations" / "_delta_log"
    log.mkdir(parents=True)
    (log / "00000000000000000000.json").write_text("not a commit")
    answer = run_walgate(
        "up",
        folder=pipeline.folder,
        environment={"WALGATE_DAGSTER__PORT": str(find_free_port())},
    )
    (complaint,) = answer.complaints
    assert answer.exit_code == 4
    assert complaint.startswith("the pipeline did not load: ")
    assert "code-server.log" in complaint


def test_a_port_in_use_is_named(pipeline: Pipeline) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        answer = run_walgate(
            "up", folder=pipeline.folder, environment={"WALGATE_DAGSTER__PORT": port}
        )
    (complaint,) = answer.complaints
    assert answer.exit_code == 3
    assert f"cannot listen on port {port} of 127.0.0.1: Address already in use" in complaint
    assert "set [dagster] port" in complaint


def test_a_home_that_cannot_be_made_is_named(pipeline: Pipeline) -> None:
    (pipeline.folder / "taken").write_text("a file, not a folder")
    answer = run_walgate(
        "up",
        folder=pipeline.folder,
        environment={
            "WALGATE_DAGSTER__HOME": "taken/home",
            "WALGATE_DAGSTER__PORT": str(find_free_port()),
        },
    )
    (complaint,) = answer.complaints
    assert answer.exit_code == 4
    assert f"[dagster] home {pipeline.folder / 'taken' / 'home'} cannot be written" in complaint


def _has_good_tick(dagster: RunningDagster, sensor: str, *, after: float) -> bool:
    """Whether a tick that began after a moment ended without an error."""
    return any(
        tick["timestamp"] > after and tick["status"] in {"SKIPPED", "SUCCESS"}
        for tick in dagster.read_ticks(sensor)
    )
