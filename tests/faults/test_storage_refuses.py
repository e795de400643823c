"""The log's storage stops or is full: capture keeps its connection, confirms nothing, and waits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cdc_core.lake_storage.local_place import LocalPlace
from tests.child_process import ChildProcess
from tests.deadline import DeadlineMissedError, wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.fix_redis import RedisServer
from tests.requirement import report_missing
from tests.walgate_command import run_walgate

TIMEOUT_S = 3
# Far more than a batch and the one behind it; a capture that goes on reading would show.
ROWS_PER_LOAD = 200_000
GROWTH_BYTES = 60 << 20
SMALL = {
    "WALGATE_CAPTURE__BATCH_ROWS": "2000",
    "WALGATE_CAPTURE__BATCH_BYTES": "256kB",
    "WALGATE_CAPTURE__SPOOL_BYTES": "1MB",
}


@pytest.fixture
def prepared(pipeline: Pipeline) -> Pipeline:
    """Lend a pipeline whose server drops a silent client after some seconds."""
    database = pipeline.database
    database.execute(f"alter database {database.name} set wal_sender_timeout = '{TIMEOUT_S}s'")
    database.execute("create table orders (id bigserial primary key, note text)")
    return pipeline


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Lend a file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        report_missing("a small file system", "run as root, where tmpfs may be mounted")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill_up(filler: Path) -> None:
    """Write until the file system is full."""
    with filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)


def insert_rows(pipeline: Pipeline, rows: int, *, per_transaction: int = 1000) -> None:
    """Insert many rows in transactions of some size."""
    pipeline.database.execute(
        "do $$ begin"
        f" for i in 1..{rows // per_transaction} loop"
        " insert into orders (note)"
        f" select md5(g::text) || md5((g + i)::text) from generate_series(1, {per_transaction}) g;"
        " commit; end loop; end $$"
    )


def watch(seconds: float, child: ChildProcess, pipeline: Pipeline) -> list[int]:
    """Watch for some seconds: same walsender, nothing unstaged confirmed; the memory seen."""
    before, memory = pipeline.slot_facts(), []
    assert before["confirmed"] <= pipeline.staged(), "confirmed before it was staged"
    end = time.monotonic() + seconds

    def has_changed() -> bool:
        memory.append(psutil.Process(child.pid).memory_info().rss)
        return pipeline.slot_facts() != before or time.monotonic() > end

    wait_for(has_changed, seconds + DEADLINE_S, "the time to pass")
    assert child.is_running, child.output()
    assert pipeline.slot_facts() == before
    return memory


@pytest.mark.parametrize(
    "seconds", [4 * TIMEOUT_S, pytest.param(40, marks=[pytest.mark.soak, pytest.mark.timeout(600)])]
)
def test_f06_a_writer_that_stands_still_costs_neither_connection_nor_memory_nor_truth(
    prepared: Pipeline, tmp_path: Path, seconds: int
) -> None:
    hold = tmp_path / "hold"
    child = prepared.start_streaming(**SMALL, WALGATE_HOLD_AT=f"before_delta_commit={hold}")
    insert_rows(prepared, 50_000)
    prepared.wait_until_staged(prepared.current_lsn())
    caught_up = prepared.staged()
    wait_for(
        lambda: prepared.slot_facts()["confirmed"] >= caught_up, DEADLINE_S, "it to be confirmed"
    )
    hold.touch()
    insert_rows(prepared, ROWS_PER_LOAD)
    prepared.wait_for_unnamed_part()
    memory = watch(seconds, child, prepared)
    settled = memory[len(memory) // 3]
    assert max(memory) < settled + GROWTH_BYTES, [size >> 20 for size in memory]
    pid = prepared.slot_facts()["pid"]
    hold.unlink()
    prepared.wait_until_staged(prepared.current_lsn())
    assert prepared.slot_facts()["pid"] == pid
    prepared.finish(child)
    assert prepared.require_truth() == (50_000 + ROWS_PER_LOAD) // 1000


def test_f08_a_full_disk_is_waited_for_and_shown_by_status(
    prepared: Pipeline, small_disk: Path, redis_server: RedisServer
) -> None:
    prepared.lake = LocalPlace.of(small_disk)
    prepared.environment = {
        "WALGATE_LAKE__ROOT": str(small_disk),
        "WALGATE_REDIS__URL": redis_server.url,
    }
    child = prepared.start_streaming(**SMALL)
    insert_rows(prepared, 2000)
    prepared.wait_until_staged(prepared.current_lsn())
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        fill_up(filler)
    insert_rows(prepared, 20_000)
    prepared.wait_for_line(child, "staging failed")
    pid = prepared.slot_facts()["pid"]
    watch(2 * TIMEOUT_S, child, prepared)
    parts = prepared.unnamed_parts()
    assert len(parts) <= 2, f"each try leaves a file: {parts}"
    answer = run_walgate(
        "status", "--json", folder=prepared.folder, environment=prepared.environment
    )
    problems = json.loads(answer.stdout)["problems"]
    (shown,) = [problem for problem in problems if problem["code"] == "storage"]
    assert "No space left" in shown["what"]
    filler.unlink()
    prepared.wait_until_staged(prepared.current_lsn())
    assert prepared.slot_facts()["pid"] == pid
    prepared.finish(child)
    assert prepared.require_truth() == 22


def test_f08_a_capture_told_to_stop_while_its_storage_refuses_ends_and_says_so(
    prepared: Pipeline,
) -> None:
    child = prepared.start_streaming(**SMALL)
    insert_rows(prepared, 2000)
    prepared.wait_until_staged(prepared.current_lsn())
    log_folder = prepared.root / "staging" / "changes" / "_delta_log"
    hidden = log_folder.with_name("hidden")
    log_folder.rename(hidden)
    log_folder.touch()  # In the way, so that no commit can be made, whoever we are.
    insert_rows(prepared, 50_000)
    prepared.wait_for_line(child, "staging failed")
    with pytest.raises(DeadlineMissedError):
        wait_for(lambda: not child.is_running, 2.0, "the queue to fill")
    child.send(signal.SIGTERM)
    assert child.wait(DEADLINE_S) == 3, child.output()
    assert "stopped before it staged or confirmed the batch" in child.output().splitlines()[-1]
    log_folder.unlink()
    hidden.rename(log_folder)
    prepared.catch_up()
    assert prepared.require_truth() == 52
