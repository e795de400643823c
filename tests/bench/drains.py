"""The systems that drain a backlog, each from a slot of its own making.

The clock starts when the server shows the slot in use, for each system alike; starts of processes
and connecting are over by then. It ends when the client has ended its stream; where there is
merging, when the last round's cut is written. Merging alone starts with its first round.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from cdc_core.settings import Settings, load_settings
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import Round, follow, merge_until
from spark_jobs.session.session import find_jvm
from tests.bench.backlog import SLOT, Backlog
from tests.bench.checks import require_log, require_table
from tests.bench.measuring import Meter
from tests.bench.results import BOTH, CURRENT, NULL, REFERENCE, STAGED, Drained
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.walgate_command import REPOSITORY, walgate_environment

DEADLINE_S = 600.0


def write_configuration(database: Database, folder: Path) -> Settings:
    """Configure a lake in a folder, with the defaults but for where everything is."""
    config = folder / "walgate.toml"
    config.write_text(
        f'[source]\ndsn = "{database.server.tcp_dsn(database.name)}"\nslot = "{SLOT}"\n'
        '[lake]\nroot = "lake"\n[redis]\nurl = "unix:///nonexistent/redis.sock"\n'
    )
    return load_settings(config, {})


def capture_base(database: Database, folder: Path) -> Settings:
    """Stage what is there before a backlog; its lake is what every run begins with."""
    settings = write_configuration(database, folder)
    child = _start_capture(folder, "staging")
    assert child.wait(DEADLINE_S) == 0, child.output()
    return settings


class Drains:
    """Drains of one backlog, the lakes in a folder; `base` is the lake before it, merged."""

    def __init__(
        self, backlog: Backlog, base: Path, folder: Path, session: SparkSession | None
    ) -> None:
        """Nothing is drained yet; merging needs a session."""
        self._backlog = backlog
        self._base = base
        self._folder = folder
        self._session = session
        self._staged: Settings | None = None

    def drain(self, system: str) -> Drained:
        """Let a system drain the backlog. What it leaves is checked, then deleted."""
        drain: dict[str, Callable[[], Drained]] = {
            REFERENCE: self._receive_by_program,
            NULL: self._receive,
            STAGED: self._stage,
            CURRENT: self._merge,
            BOTH: self._stage_and_merge,
        }
        return drain[system]()

    def forget(self) -> None:
        """Delete what was staged and not merged."""
        if self._staged is not None:
            shutil.rmtree(path_of(self._staged.lake.root.parent))
            self._staged = None

    def _receive_by_program(self) -> Drained:
        server = self._backlog.database.server
        command = [str(server.bin("pg_recvlogical")), "-S", SLOT]
        command += ["-d", server.tcp_dsn(self._backlog.database.name)]
        command += ["--start", "-f", "/dev/null", "-n"]
        command += ["-E", f"{self._backlog.end_lsn >> 32:X}/{self._backlog.end_lsn & 0xFFFFFFFF:X}"]
        for option in ("proto_version=1", "publication_names=walgate", "messages=true"):
            command += ["-o", option]
        with self._backlog.lend_slot():
            child = ChildProcess(command, log=self._folder / "pg_recvlogical.log")

            def wait() -> float:
                wait_for(lambda: not child.is_running, DEADLINE_S, "pg_recvlogical to end")
                return time.monotonic()

            seconds, meter = self._time(child, wait)
            assert child.wait() == 0, child.output()
        return Drained(self._rows, seconds, meter.cpu_s(), meter.peak_bytes("client"))

    def _receive(self) -> Drained:
        folder = self._make_folder()
        write_configuration(self._backlog.database, folder)
        seconds, meter, answer = self._capture(folder, "null")
        shutil.rmtree(folder)
        assert answer["entries"] == self._rows
        return Drained(
            self._rows,
            seconds,
            meter.cpu_s(),
            answer["peak_bytes"],
            rows_checked=answer["entries"],
        )

    def _stage(self) -> Drained:
        self.forget()
        settings = self._copy_base()
        seconds, meter, answer = self._capture(settings.state_folder.parent, "staging")
        self._staged = settings
        return Drained(
            self._rows,
            seconds,
            meter.cpu_s(),
            answer["peak_bytes"],
            commits_ms=tuple(answer["commits_ms"]),
            rows_checked=require_log(_lake_of(settings), self._backlog),
        )

    def _merge(self) -> Drained:
        if self._staged is None:
            self._stage()
        assert self._staged is not None
        assert self._session is not None
        settings, lake = self._staged, _lake_of(self._staged)
        with Meter(_find_merger(self._session)) as meter:
            started = time.monotonic()
            rounds = merge_until(self._session, lake, round_rows=settings.merge.round_rows)
            seconds = time.monotonic() - started
        checked = self._check(lake)
        self.forget()
        return Drained(
            self._rows,
            seconds,
            _by_role(meter),
            meter.peak_bytes("driver", "jvm"),
            rounds_ms=tuple(1000 * done.seconds for done in rounds),
            rows_checked=checked,
        )

    def _stage_and_merge(self) -> Drained:
        assert self._session is not None
        session, settings = self._session, self._copy_base()
        lake = _lake_of(settings)
        rounds: list[Round] = []

        def merge(child: ChildProcess) -> float:
            stop = threading.Event()

            def count(done: Round) -> None:
                rounds.append(done)
                if done.cut.lsn >= self._backlog.end_lsn:
                    stop.set()

            def wait(seconds: float) -> object:
                assert child.exit_code in {None, 0}, child.output()
                return stop.wait(seconds)

            follow(
                session,
                lake,
                round_rows=settings.merge.round_rows,
                linger_seconds=None,
                stop=stop,
                deadline=time.monotonic() + DEADLINE_S,
                on_round=count,
                wait=wait,
            )
            return time.monotonic()

        folder = settings.state_folder.parent
        seconds, meter, answer = self._capture(folder, "staging", merge)
        checked = self._check(lake)
        shutil.rmtree(folder)
        return Drained(
            self._rows,
            seconds,
            _by_role(meter),
            answer["peak_bytes"] + meter.peak_bytes("driver", "jvm"),
            commits_ms=tuple(answer["commits_ms"]),
            rounds_ms=tuple(1000 * done.seconds for done in rounds),
            rows_checked=checked,
        )

    def _check(self, lake: Lake) -> int:
        assert self._session is not None
        return require_table(self._session, lake, self._backlog.rows, self._backlog.checksum)

    @property
    def _rows(self) -> int:
        return self._backlog.shape.rows

    def _capture(
        self,
        folder: Path,
        sink: str,
        merge: Callable[[ChildProcess], float] | None = None,
    ) -> tuple[float, Meter, dict[str, Any]]:
        """Drain by a capture process; the clock ends with it, or with the merging beside it."""
        with self._backlog.lend_slot():
            child = _start_capture(folder, sink)

            def finish() -> float:
                if merge is not None:
                    return merge(child)
                wait_for(lambda: not child.is_running, DEADLINE_S, "capture to end")
                return float(_read_answer(child, folder)["at"])

            merger = {} if merge is None else _find_merger(self._session)
            seconds, meter = self._time(child, finish, merger)
            return seconds, meter, _read_answer(child, folder)

    def _time(
        self,
        child: ChildProcess,
        finish: Callable[[], float],
        others: Mapping[str, int] | None = None,
    ) -> tuple[float, Meter]:
        """Seconds from when the slot is in use to what `finish` says, and what it took."""
        in_use = "select active_pid from pg_replication_slots where slot_name = %s and active"
        try:
            with psycopg.connect(self._backlog.database.dsn, autocommit=True) as connection:

                def find_walsender() -> int | None:
                    row = connection.execute(in_use, [SLOT]).fetchone()
                    assert row is not None or child.is_running, child.output()
                    return None if row is None else int(row[0])

                walsender = wait_for(find_walsender, DEADLINE_S, "the slot to be in use")
            assert walsender is not None
            started = time.monotonic()
            pids = {"client": child.pid, "walsender": walsender} | dict(others or {})
            with Meter(pids) as meter:
                ended = finish()
        except BaseException:
            if child.is_running:
                child.kill()
            raise
        return ended - started, meter

    def _copy_base(self) -> Settings:
        folder = self._make_folder()
        shutil.copytree(self._base, folder / "lake")
        return write_configuration(self._backlog.database, folder)

    def _make_folder(self) -> Path:
        folder = self._folder / "run"
        while folder.exists():
            folder = folder.with_name(folder.name + "-")
        folder.mkdir()
        return folder


def _start_capture(folder: Path, sink: str) -> ChildProcess:
    command = [sys.executable, "-m", "tests.bench.capture"]
    return ChildProcess(
        [*command, folder / "walgate.toml", sink, folder / "answer.json"],
        log=folder / "capture.log",
        environment=walgate_environment({"PYTHONPATH": str(REPOSITORY)}),
    )


def _read_answer(child: ChildProcess, folder: Path) -> dict[str, Any]:
    assert child.wait(DEADLINE_S) == 0, child.output()
    answer: dict[str, Any] = json.loads((folder / "answer.json").read_text())
    return answer


def _lake_of(settings: Settings) -> Lake:
    return Lake.of(settings)


def _find_merger(session: SparkSession | None) -> dict[str, int]:
    """The processes that merge: Spark's driver in Python, which is this one, and its JVM."""
    assert session is not None
    jvm = find_jvm(session)
    assert jvm is not None
    return {"driver": os.getpid(), "jvm": jvm}


def _by_role(meter: Meter) -> dict[str, float]:
    """CPU seconds, Spark's driver in Python counted as the client's."""
    used = meter.cpu_s()
    used["client"] = used.get("client", 0.0) + used.pop("driver")
    return used
