"""Times a commit of the log beside compaction, and a round of a merge beside maintenance.

`python -m tests.bench.upkeep` takes some six minutes. Each pair is one phase without the other work
and one with it, so that a noisy minute spoils both. The program prints the figures of each pair.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from cdc_core.thread_priority import lower_priority
from spark_jobs.lake.lake import Lake
from spark_jobs.target.limits import DEFAULT_LIMITS
from tests.background import Background
from tests.fix_spark import run_spark
from tests.lakes import locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.maintenance import maintain_child
from tests.spark.maintenance.maintained_lake import CaptureLog
from tests.spark.relations import Entry, insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.walgate_command import REPOSITORY

TABLES = [make_relation(f"t{number}", "k int8, v text") for number in range(3)]
PAIRS = 5
COMMITS, COMMIT_ROWS = 400, 500
ROUNDS, KEYS, ROUND_ROWS = 40, 20_000, 300
# Seconds. Compaction takes files that are older, so it always finds some.
SETTLED_S = 2.0


def main() -> None:
    """Measure both, and print."""
    with tempfile.TemporaryDirectory(prefix="walgate-bench-") as name:
        folder = Path(name)
        print("a commit of the log, alone and beside compaction", flush=True)
        for pair in range(PAIRS):
            alone = time_commits(folder / f"alone-{pair}", is_tended=False)
            tell(alone, time_commits(folder / f"tended-{pair}", is_tended=True))
        print("a round of three tables, alone and beside maintenance", flush=True)
        with run_spark() as session:
            small = fill(session, folder)
            time_rounds(small)
            for _ in range(PAIRS):
                alone = time_rounds(small)
                with maintaining(folder):
                    tell(alone, time_rounds(small))


def tell(alone: Sequence[float], beside: Sequence[float]) -> None:
    """Print medians, 99th percentiles and their ratios. Units: seconds."""
    parts = []
    for title, pick in (("p50", statistics.median), ("p99", find_p99)):
        one, other = pick(alone), pick(beside)
        parts.append(f"{title} {one * 1e3:.0f} and {other * 1e3:.0f} ms: {other / one:.2f}")
    print("  " + "; ".join(parts), flush=True)


def find_p99(seconds: Sequence[float]) -> float:
    """The 99th percentile."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


def time_commits(folder: Path, *, is_tended: bool) -> list[float]:
    """Make a log, and time its commits."""
    folder.mkdir()
    writer = LogWriter(Lake(locate_lake(folder / "lake")))
    writer.begin_epoch(16)
    log = CaptureLog(writer, folder / "spool", grace_s=10, settled_s=SETTLED_S)
    chance, seconds = random.Random(1), list[float]()
    with Background(partial(tend_always, log)) if is_tended else nullcontext():
        for number in range(COMMITS):
            values = [chance.randbytes(20).hex() for _ in range(COMMIT_ROWS)]
            first = number * COMMIT_ROWS
            entries = [insert(TABLES[0], str(first + i), v) for i, v in enumerate(values)]
            seconds.append(log.stage(entries)[1])
    return seconds


def tend_always(log: CaptureLog, is_over: threading.Event) -> None:
    """Tend a log as capture's thread does, but without its pauses."""
    lower_priority()
    while not is_over.is_set():
        if not log.tend():
            is_over.wait(0.05)


def fill(session: SparkSession, folder: Path) -> SmallLake:
    """Make a lake with three tables."""
    small = SmallLake(session, folder, limits=DEFAULT_LIMITS)
    small.merge([insert(table, str(key), "v" * 40) for table in TABLES for key in range(KEYS)])
    return small


def time_rounds(small: SmallLake) -> list[float]:
    """Time rounds that change some rows of each table."""
    chance, seconds = random.Random(small.log.lsn), list[float]()
    for _ in range(ROUNDS):
        changes: list[Entry] = []
        for table in TABLES:
            keys = chance.sample(range(KEYS), ROUND_ROWS)
            changes += [update(table, str(key), chance.randbytes(20).hex()) for key in keys]
        small.commit(changes)
        began = time.perf_counter()
        small.merge()
        seconds.append(time.perf_counter() - began)
    return seconds


@contextmanager
def maintaining(folder: Path) -> Iterator[None]:
    """Maintain a lake without pause in another process, which must not fail."""
    child = subprocess.Popen(
        [sys.executable, maintain_child.__file__, folder, "loop"],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    try:
        yield
        assert child.poll() is None, "the maintenance failed"
    finally:
        child.kill()
        child.wait()


if __name__ == "__main__":
    main()
