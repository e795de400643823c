"""Rows of 100 MB are read, streamed and merged, whole, at a stated heap."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.child_process import ChildProcess
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import walgate_command, walgate_environment

MB = 1 << 20
HEAP = "6g"
# Of 100 MB that no compression makes less.
LARGE = "(select string_agg(md5(i::text || random()), '') from generate_series(1, 3200000) i)"


def run(pipeline: Pipeline, *arguments: str) -> int:
    """Run a command however long it takes; the most memory that its own process had."""
    file = pipeline.folder / "walgate.toml"
    heap = {"WALGATE_SPARK__DRIVER_MEMORY": HEAP}
    child = subprocess.Popen(
        walgate_command(*arguments, "--config", file), env=walgate_environment(heap)
    )
    process, most = psutil.Process(child.pid), 0
    while child.poll() is None:
        most = max(most, _measure(process))
        try:
            child.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    assert child.returncode == 0, arguments
    return most // MB


def _measure(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def measure_capture(capture: ChildProcess) -> int:
    """The most memory that a capture has had."""
    lines = Path(f"/proc/{capture.pid}/status").read_text(encoding="ascii").splitlines()
    (peak,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(peak.split()[1]) // 1024


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_rows_of_100_mb_arrive_whole(pipeline: Pipeline, database18: Database) -> None:
    database18.execute("create table heavy (id int primary key, v int, x text)")
    database18.execute("alter table heavy alter x set storage external")
    database18.execute(f"insert into heavy select 1, 1, {LARGE}")
    database18.execute("insert into heavy select i, 1, 'small' from generate_series(10, 20) i")
    pipeline.make_slot_again()
    capture = pipeline.start_streaming()
    worker = run(pipeline, "backfill", "public.heavy")
    database18.execute(f"insert into heavy select 2, 1, {LARGE}")
    database18.execute("update heavy set v = 2 where id in (1, 2)")
    pipeline.wait_until_staged(pipeline.current_lsn())
    print(f"worker {worker} MB, capture {measure_capture(capture)} MB")  # noqa: T201 - its figures.
    pipeline.finish(capture)
    run(pipeline, "merge")
    rows = {
        row["id"]: (row["v"], hashlib.md5(row["x"].encode()).hexdigest())  # noqa: S324 - as the source.
        for file in DeltaTable(pipeline.root / "tables" / "public" / "heavy").file_uris()
        for row in pq.read_table(file, columns=["id", "v", "x"]).to_pylist()
    }
    assert rows == {
        row[0]: (row[1], row[2]) for row in database18.query("select id, v, md5(x) from heavy")
    }
