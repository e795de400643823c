"""`walgate replicate` as a process: it drains when told to, and keeps secrets."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.postgres_server import Database
from tests.walgate_command import run_walgate, walgate_command, walgate_environment

CANARY = "c4n4ry-s3cret"
DEADLINE_S = 60.0


@pytest.fixture
def slot(database18: Database, tmp_path: Path) -> str:
    name = f"s_{database18.name}"
    database18.execute("create table orders (id bigint primary key, note text)")
    arguments = ["init", "--dsn", database18.dsn, "--slot", name, "--create"]
    assert run_walgate(*arguments, folder=tmp_path).exit_code == 0
    return name


def staged_rows(folder: Path) -> int:
    path = folder / "lake" / "staging" / "changes"
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    log = DeltaTable(path).to_pyarrow_dataset()
    return sum(op != "mark" for op in log.to_table(columns=["op"]).column("op").to_pylist())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_drains_and_exits_with_0(
    database18: Database, slot: str, tmp_path: Path, number: signal.Signals
) -> None:
    child = ChildProcess(
        walgate_command("replicate", "--config", tmp_path / "walgate.toml"),
        log=tmp_path / "output",
        environment=walgate_environment({"WALGATE_SOURCE__PASSWORD": CANARY}),
    )
    try:
        database18.execute("insert into orders values (1, %s)", [CANARY])
        wait_for(lambda: staged_rows(tmp_path) == 1, DEADLINE_S, "the row to be staged")
        assert CANARY not in " ".join(psutil.Process(child.pid).cmdline())
        database18.execute("insert into orders values (2, %s)", [CANARY])
        active = "select active from pg_replication_slots where slot_name = %s"
        assert database18.query(active, [slot]) == [(True,)]
    finally:
        exit_code = child.stop(number)
    assert exit_code == 0
    assert CANARY not in child.output()
    assert "Traceback" not in child.output()
    assert database18.query(active, [slot]) == [(False,)]


def test_until_current_stages_what_was_committed_before_it(
    database18: Database, slot: str, tmp_path: Path
) -> None:
    database18.execute("insert into orders select i, 'x' from generate_series(1, 500) i")
    answer = run_walgate("replicate", "--until-current", "--log", "json", folder=tmp_path)
    assert answer.exit_code == 0, answer
    assert answer.stdout == ""
    assert staged_rows(tmp_path) == 500
    assert slot
