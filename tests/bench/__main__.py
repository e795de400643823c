"""How fast a backlog is drained, beside pg_recvlogical, and how long merges and backfills take.

`python -m tests.bench` takes every shape and system, writes `bench/results.json` and refreshes the
tables of docs/performance.md; with fewer of them or other numbers it only prints.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession

from cdc_core.settings import Settings
from orchestration.runs.spark import open_spark
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.bench.backfills import Backfills
from tests.bench.backlog import Shape, fill, lay_base
from tests.bench.drains import Drains, capture_base, write_configuration
from tests.bench.merges import run_merges
from tests.bench.results import (
    BACKFILL,
    BOTH,
    CURRENT,
    SYSTEMS,
    Drained,
    Round,
    compare,
    sum_up,
)
from tests.bench.table import RESULTS, format_merges, format_table, refresh_page
from tests.lakes import path_of
from tests.postgres_server import PostgresServer, find_binaries, program_version
from tests.walgate_command import REPOSITORY

VERSION = 18
MERGES = "merges"
# Nothing of the server's own runs while a backlog drains.
SETTINGS = {
    "shared_buffers": "512MB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run; the defaults are the bench of docs/performance.md."""

    shapes: tuple[int, ...] = (1, 100, 10_000)
    systems: tuple[str, ...] = SYSTEMS
    rows: int = 500_000
    rounds: int = 3
    backfill_rows: int = 8_000_000
    merge_rows: int = 10_000_000


def run(plan: Plan) -> dict[str, Any]:
    """Drain every backlog by every system, in rounds after a warm-up; give the results."""
    began = time.monotonic()
    binaries = find_binaries(VERSION)
    assert binaries is not None, "no PostgreSQL: run `make setup`"
    server = PostgresServer(VERSION, binaries, **SETTINGS)
    shapes: dict[str, Any] = {}
    ages: dict[str, Any] = {}
    merges: dict[str, Any] = {}
    try:
        server.start()
        with tempfile.TemporaryDirectory(prefix="walgate-bench-") as folder:
            bench = _Bench(server, plan, Path(folder), began)
            for per_transaction in plan.shapes:
                shape = Shape(plan.rows, per_transaction)
                shapes[shape.name] = sum_up(bench.run_shape(shape))
            if plan.backfill_rows:
                shapes[BACKFILL], ages = bench.run_backfills()
            if plan.merge_rows:
                merges = bench.run_merges()
            bench.close()
    finally:
        server.remove()
    measured = {"date": datetime.now(UTC).date().isoformat(), "commit": _read_commit()}
    return {
        **measured,
        "hardware": _describe_hardware(program_version(binaries)),
        "shapes": shapes,
        "ages": ages,
        "merges": {**measured, "cases": merges},
    }


class _Bench:
    """The server, and the one Spark session of all shapes."""

    def __init__(self, server: PostgresServer, plan: Plan, folder: Path, began: float) -> None:
        self._server = server
        self._plan = plan
        self._folder = folder
        self._began = began
        self._session: SparkSession | None = None

    def close(self) -> None:
        """End the session."""
        if self._session is not None:
            self._session.stop()

    def run_shape(self, shape: Shape) -> list[Round]:
        """Fill a backlog and drain it; the first round is a warm-up, left out unless it is all."""
        folder = self._folder / shape.name
        (folder / "base").mkdir(parents=True)
        database = self._server.create_database(f"bench_{shape.name}")
        lay_base(database, shape)
        settings = capture_base(database, folder / "base")
        lake = Lake.of(settings)
        if {CURRENT, BOTH}.intersection(self._plan.systems):
            session = self._require_session(settings)
            merge_until(session, lake, round_rows=settings.merge.round_rows)
        self._say(shape, f"filling {shape.rows:,} changes")
        backlog = fill(database, shape)
        drains = Drains(backlog, path_of(lake.root), folder, self._session)
        rounds: list[Round] = []
        for number in range(self._plan.rounds + 1):
            done: dict[str, Drained] = {}
            for system in self._plan.systems:
                done[system] = drains.drain(system)
                title = f"round {number} of {self._plan.rounds}" if number else "warm-up"
                self._say(shape, f"{title}: {_describe(system, done)}")
            drains.forget()
            rounds.append(done)
        self._server.drop_database(database.name)
        shutil.rmtree(folder)
        return rounds[1:] or rounds

    def run_backfills(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Bring a table in; give the figures, and the ages of changes beside it."""
        folder = self._folder / BACKFILL
        folder.mkdir()
        database = self._server.create_database("bench_backfill")
        rows = self._plan.backfill_rows
        self._say(BACKFILL, f"filling {rows:,} rows")
        session = self._require_session(write_configuration(database, folder))
        backfills = Backfills(database, rows, folder, session)
        rounds: list[Round] = []
        for number in range(self._plan.rounds + 1):
            done = backfills.run()
            title = f"round {number} of {self._plan.rounds}" if number else "warm-up"
            for system in done:
                self._say(BACKFILL, f"{title}: {_describe(system, done)}")
            rounds.append(done)
        self._server.drop_database(database.name)
        return sum_up(rounds[1:] or rounds), backfills.ages

    def run_merges(self) -> dict[str, Any]:
        """Merge changes into tables of several sizes; give the figures of each case."""
        folder = self._folder / "merges"
        folder.mkdir()
        # The database is there only because a configuration names one.
        database = self._server.create_database("bench_merges")
        session = self._require_session(write_configuration(database, folder))
        done: dict[str, Any] = {}
        for name, figures in run_merges(
            session, folder, rounds=self._plan.rounds, most_rows=self._plan.merge_rows
        ):
            self._say(MERGES, f"{name}: {figures['seconds'][1]} s, {figures['cpu_s']} s of CPU")
            done[name] = figures
        self._server.drop_database(database.name)
        return done

    def _require_session(self, settings: Settings) -> SparkSession:
        if self._session is None:
            self._say("", "starting Spark")
            self._session = open_spark(settings)
        return self._session

    def _say(self, shape: Shape | str, what: str) -> None:
        took = time.monotonic() - self._began
        name = shape if isinstance(shape, str) else f"{shape.per_transaction:>6} rows/tx"
        print(f"{took:6.1f} s  {name:14}  {what}", flush=True)


def _describe(system: str, done: Round) -> str:
    drained = done[system]
    ratio = compare(drained, done)
    parts = [f"{system:14} {drained.seconds:6.2f} s {drained.rows_s:9,.0f} rows/s"]
    if ratio is not None:
        parts.append(f"{ratio:5.2f} x")
    parts += [f"{name} {1e6 * cpu / drained.rows:.2f}" for name, cpu in drained.cpu_s.items()]
    parts.append(f"us/row  {drained.peak_bytes >> 20} MB")
    if drained.rounds_ms:
        parts.append("rounds " + ", ".join(f"{ms / 1000:.1f} s" for ms in drained.rounds_ms))
    if drained.rows_checked is not None:
        parts.append(f"{drained.rows_checked:,} checked")
    return " ".join(parts)


def _read_commit() -> str:
    answer = subprocess.run(
        ["git", "-C", REPOSITORY, "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or "unknown"


def _describe_hardware(postgres: str) -> str:
    cpu = platform.processor() or platform.machine()
    listed = Path("/proc/cpuinfo")
    if listed.exists():
        models = [line for line in listed.read_text().splitlines() if line.startswith("model name")]
        cpu = models[0].partition(":")[2].strip() if models else cpu
    memory = psutil.virtual_memory().total / (1 << 30)
    system = f"{platform.system()} {platform.release()}"
    return f"{os.cpu_count()} cores, {cpu}, {memory:.0f} GB, {system}, PostgreSQL {postgres}"


def _parse_arguments(arguments: Sequence[str] | None = None) -> tuple[Plan, Path | None]:
    standard = Plan()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", type=int, nargs="*", default=standard.shapes)
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=standard.systems)
    parser.add_argument("--rows", type=int, default=standard.rows)
    parser.add_argument(
        "--rounds", type=int, default=standard.rounds, help="after the warm-up; 0 counts that one"
    )
    parser.add_argument("--output", type=Path, help="where results go, of a smaller run too")
    parser.add_argument(
        "--backfill-rows", type=int, default=standard.backfill_rows, help="0 leaves backfills out"
    )
    parser.add_argument(
        "--merge-rows",
        type=int,
        default=standard.merge_rows,
        help="most rows of a table of the merges; 0 leaves them out",
    )
    chosen = parser.parse_args(arguments)
    plan = Plan(
        tuple(chosen.shapes),
        tuple(chosen.systems),
        chosen.rows,
        chosen.rounds,
        chosen.backfill_rows,
        chosen.merge_rows,
    )
    return plan, chosen.output or (RESULTS if plan == standard else None)


def main() -> None:
    """Run, print the table; of the whole bench write the results, into the page too."""
    plan, output = _parse_arguments()
    results = run(plan)
    print()
    print(format_table(results))
    print()
    print(format_merges(results))
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(results, indent=2) + "\n")
        print(f"\nwritten to {output}")
    if output == RESULTS:
        refresh_page()


if __name__ == "__main__":
    main()
