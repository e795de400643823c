"""How fast a table that is there already is brought in, beside COPY of it to /dev/null.

Capture runs before the clock starts. The clock of `backfill` ends when the log has every row and
its sweep. In `backfill, merge`, which is another backfill, what the log has is merged meanwhile, as
a deployment does; its clock ends when the cut that has all of it is written.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from cdc_core.settings import Settings
from cdc_core.vocabulary import Lsn
from orchestration.status.freshness import measure_freshness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.merge.rounds import Round as RoundOfMerge
from spark_jobs.merge.rounds import follow, merge_until
from tests.bench.backlog import lay_rows, sum_up_rows
from tests.bench.checks import require_table
from tests.bench.drains import DEADLINE_S, write_configuration
from tests.bench.measuring import Meter
from tests.bench.results import COPY, READ, TABLE, Drained, Round
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.postgres_server import Database
from tests.walgate_command import REPOSITORY, walgate_command, walgate_environment

# Changes of another table, whose age tells what a backfill beside them costs.
_PULSE_S = 0.02
_ALONE = 600


class Backfills:
    """Backfills of one table, each into a lake of its own."""

    def __init__(self, database: Database, rows: int, folder: Path, session: SparkSession) -> None:
        """Make the table and its rows."""
        self._database = database
        self._rows = rows
        self._folder = folder
        self._session = session
        self._ages: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        lay_rows(database, rows)
        database.execute("create table pulse (id bigint generated always as identity primary key)")

    @property
    def ages(self) -> dict[str, dict[str, Any]]:
        """The newest ages of changes at `live`."""
        return {name: ages[-1] for name, ages in self._ages.items()}

    def run(self) -> Round:
        """Copy the table, then bring it in, without merging and with it."""
        return {COPY: self._copy(), READ: self._bring_in(), TABLE: self._bring_in(merging=True)}

    def _copy(self) -> Drained:
        server = self._database.server
        place = ["-X", "-d", server.tcp_dsn(self._database.name)]
        command = [str(server.bin("psql")), *place, "-c", "copy bench to stdout"]
        started = time.monotonic()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return Drained(self._rows, time.monotonic() - started, {}, 0)

    def _bring_in(self, *, merging: bool = False) -> Drained:
        folder = self._folder / "backfill"
        folder.mkdir()
        self._database.query("select pg_create_logical_replication_slot('walgate', 'pgoutput')")
        settings = write_configuration(self._database, folder)
        lake = Lake.of(settings)
        with self._capturing(folder) as capture:
            with self._changing("alone", settings) as count:
                wait_for(lambda: count() >= _ALONE, DEADLINE_S, f"{_ALONE} changes")
            merges = _Merges(self._session, lake, settings.merge.round_rows)
            if merging:
                # What was staged before is no part of it.
                merges.end()
            worker, answer = self._start_worker(folder)
            name = "beside a backfill and its merge" if merging else "beside a backfill"
            with (
                self._changing(name, settings),
                Meter({"client": worker.pid, "capture": capture.pid}) as meter,
            ):
                started = time.monotonic()
                with merges.following() if merging else nullcontext():
                    worker.communicate(b"go\n", timeout=DEADLINE_S)
                assert worker.returncode == 0
                rounds = merges.end() if merging else []
                seconds = time.monotonic() - started
            read = json.loads(answer.read_text())
            cpu_s = {"client": sum(meter.cpu_s().values())}
            peak = meter.peak_bytes("client", "capture")
        self._database.query("select pg_drop_replication_slot('walgate')")
        if not merging:
            drained = Drained(self._rows, read["seconds"], cpu_s, peak, rows_checked=read["rows"])
        else:
            checked = require_table(self._session, lake, *sum_up_rows(self._database))
            rounds_ms = tuple(1000 * done.seconds for done in rounds)
            drained = Drained(self._rows, seconds, {}, 0, rounds_ms=rounds_ms, rows_checked=checked)
        shutil.rmtree(folder)
        return drained

    @contextmanager
    def _capturing(self, folder: Path) -> Iterator[ChildProcess]:
        child = ChildProcess(
            walgate_command("replicate", "--config", folder / "walgate.toml"),
            log=folder / "capture.log",
            environment=walgate_environment(),
        )
        try:
            wait_for(
                lambda: "capture started" in child.output(), DEADLINE_S, "the capture to start"
            )
            yield child
        finally:
            child.stop()

    def _start_worker(self, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
        answer = folder / "answer.json"
        worker = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.backfill_worker", folder / "walgate.toml", answer],
            stdin=subprocess.PIPE,
            env=walgate_environment({"PYTHONPATH": str(REPOSITORY)}),
        )
        ready = answer.with_suffix(".ready").exists
        wait_for(ready, DEADLINE_S, "the worker to be ready")
        return worker, answer

    @contextmanager
    def _changing(self, name: str, settings: Settings) -> Iterator[Callable[[], int]]:
        """Change another table while a block runs; keep how old its changes were at `live`.

        Lend how many there were so far.
        """
        over = threading.Event()
        made = 0
        since = Bound(1, Lsn(self._current_lsn()))

        def change() -> None:
            nonlocal made
            with psycopg.connect(self._database.dsn, autocommit=True) as connection:
                while not over.wait(_PULSE_S):
                    connection.execute("insert into pulse default values")
                    made += 1

        thread = threading.Thread(target=change, daemon=True)
        thread.start()
        try:
            yield lambda: made
        finally:
            over.set()
            thread.join()
        end = self._current_lsn()
        lake = Lake.of(settings)
        wait_for(
            lambda: (staged := lake.read_staged(lake.read_epochs())) and staged.lsn >= end,
            DEADLINE_S,
            "the changes to be staged",
        )
        live = measure_freshness(lake, since).live
        assert live is not None
        self._ages[name].append(asdict(live))

    def _current_lsn(self) -> int:
        ((lsn,),) = self._database.query("select pg_current_wal_lsn() - '0/0'")
        return int(lsn)


class _Merges:
    """Rounds that follow what is staged, as a deployment does."""

    def __init__(self, session: SparkSession, lake: Lake, round_rows: int) -> None:
        self._session = session
        self._lake = lake
        self._round_rows = round_rows
        self._rounds: list[RoundOfMerge] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        """Merge while a block runs."""
        over = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            merging = pool.submit(
                follow,
                self._session,
                self._lake,
                round_rows=self._round_rows,
                linger_seconds=None,
                stop=over,
                on_round=self._rounds.append,
            )
            try:
                yield
            finally:
                over.set()
                merging.result()

    def end(self) -> list[RoundOfMerge]:
        """Merge what is staged; every round since it was last asked."""
        rounds, self._rounds = self._rounds, []
        return rounds + merge_until(self._session, self._lake, round_rows=self._round_rows)
