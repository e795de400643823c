"""Starts and ends Dagster's three processes for one pipeline: code server, page and daemon.

Each code server listens on the same socket path, so that page and daemon find the next code server
by themselves. A process that dies is started again. The end has an order: the daemon ends, so that
no run begins; the runs drain; page and code server end; then all processes that are left end.
"""

from __future__ import annotations

import importlib.resources
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from deltalake.exceptions import DeltaError

import orchestration
from cdc_core.errors import Retry, WalgateError
from cdc_core.settings import Settings
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import add_partitions, find_tables
from orchestration.runs.log_lines import FORM_VARIABLE, LogForm
from orchestration.runs.pipeline_runs import PipelineRuns, name_pipeline
from orchestration.stack.draining import drain_runs, record_ended, record_left
from orchestration.stack.page import HOST, Page
from orchestration.stack.processes import end_processes, hold_stack, start_process
from orchestration.stack.supervisor import Program, Supervisor
from spark_jobs.lake.lake import Lake

MODULE = "orchestration.definitions"
_logger = logging.getLogger("walgate.up")
# All three processes import at once, on a machine that may be busy.
_START_DEADLINE_S = 300.0
_POLL_S = 0.25
_WATCH_S = 10.0
# Longer than `hosting.DRAIN_S`, within which a run gives up by itself.
_DRAIN_S = 110.0
_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class DagsterStack:
    """A running Dagster."""

    url: str
    instance: dg.DagsterInstance
    logs: Path
    _keeper: Supervisor

    @property
    def pids(self) -> dict[Program, int]:
        """The process ids of code server, page and daemon."""
        return self._keeper.pids


@contextmanager
def run_dagster(
    settings: Settings,
    *,
    config: Path,
    log: LogForm = "logfmt",
    stop: threading.Event | None = None,
    hurry: threading.Event | None = None,
    module: str = MODULE,
) -> Iterator[DagsterStack]:
    """Run Dagster until the block ends; ready at its start, nothing left at its end.

    While the block runs, it holds `[state_folder]/up.lock`. First it ends the processes that an
    earlier holder left, and records their runs as failed. If `stop` is set while Dagster starts,
    the block begins at once, ready or not. `hurry` cuts the drain short. The caller must handle
    SIGINT: if SIGINT is ignored, the processes inherit that.
    Raises: StackInUse; WalgateError if a folder or the port is not available, or the code does not
    load.
    """
    stack = settings.state_folder
    stop, hurry = stop or threading.Event(), hurry or threading.Event()
    with hold_stack(stack):
        _prepare_home(settings.dagster.home)
        _require_port(settings.dagster.port)
        # The path of a socket must be short, and the path of the home may be long.
        private = Path(tempfile.mkdtemp(prefix="walgate-"))
        instance = dg.DagsterInstance.from_config(str(settings.dagster.home))
        own = PipelineRuns(name_pipeline(settings), location=settings.dagster.pipeline)
        try:
            # Nothing is launched yet, so an earlier stack left every run that is active now.
            record_left(instance, own)
            programs = _plan_programs(settings, config, log, private, module)
            with _running(settings, programs, stop) as (keeper, page):
                if not stop.is_set():
                    add_partitions(instance, settings, find_tables(settings))
                logs = _log_folder(settings)
                try:
                    yield DagsterStack(page.url, instance, logs, keeper)
                finally:
                    _logger.info("stack stopping")
                    keeper.end("daemon", grace_s=_GRACE_S)
                    drain_runs(instance, own, most_s=_DRAIN_S, hurry=hurry)
        finally:
            if end_processes(stack, grace_s=0 if hurry.is_set() else _GRACE_S):
                _logger.warning("processes ended that were still running")
            record_ended(instance, own)
            instance.dispose()
            shutil.rmtree(private, ignore_errors=True)


@contextmanager
def _running(
    settings: Settings,
    programs: dict[Program, Callable[[], subprocess.Popen[bytes]]],
    stop: threading.Event,
) -> Iterator[tuple[Supervisor, Page]]:
    """Run the three processes until the block ends, ready at its start; restart those that die."""
    page = Page(settings.dagster.port, location=settings.dagster.pipeline)
    finished = threading.Event()
    watcher = threading.Thread(
        target=_watch_tables, args=(settings, page, finished), name="walgate-tables", daemon=True
    )
    keeper = Supervisor(programs)
    try:
        _wait_until_ready(keeper, page, _log_folder(settings), stop)
        keeper.keep()
        watcher.start()
        yield keeper, page
    finally:
        finished.set()
        keeper.close()
        names: tuple[Program, ...] = ("daemon", "web", "code-server")
        for name in names:
            keeper.end(name, grace_s=_GRACE_S)
        if watcher.is_alive():
            watcher.join()


def _prepare_home(home: Path) -> None:
    """Make Dagster's home, with our dagster.yaml unless it has one."""
    target = home / "dagster.yaml"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            packaged = importlib.resources.files(orchestration) / "dagster.yaml"
            target.write_text(packaged.read_text(encoding="utf-8"), encoding="utf-8")
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        raise WalgateError(
            f"[dagster] home {home} cannot be written: {error.strerror}",
            fix="let this user write there, or choose another [dagster] home",
            retry=Retry.AFTER_FIX,
        ) from error


def _require_port(port: int) -> None:
    with socket.socket() as probe:
        # The page listens with this option too: connections of an earlier page may linger.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise WalgateError(
                f"cannot listen on port {port} of {HOST}: {error.strerror}",
                fix="stop the program that listens there, or set [dagster] port"
                " (WALGATE_DAGSTER__PORT)",
                retry=Retry.LATER,
            ) from error


def _plan_programs(
    settings: Settings, config: Path, form: LogForm, private: Path, module: str
) -> dict[Program, Callable[[], subprocess.Popen[bytes]]]:
    """The functions that start the three processes; each may be called repeatedly."""
    location = settings.dagster.pipeline
    place, workspace = private / "code.sock", private / "workspace.yaml"
    server = {"grpc_server": {"socket": str(place), "location_name": location}}
    workspace.write_text(json.dumps({"load_from": [server]}), encoding="utf-8")
    root = Path(str(importlib.resources.files(orchestration))).parent
    quiet = ("--log-level", "warning")
    commands: dict[Program, tuple[str | Path, ...]] = {
        "code-server": (
            *("dagster", "code-server", "start", *quiet, "--location-name", location),
            *("--socket", place, "-m", module, "-d", root),
        ),
        "web": (
            *("dagster_webserver", "-h", HOST, "-p", str(settings.dagster.port)),
            *("--dagster-log-level", "warning", "-w", workspace),
        ),
        "daemon": ("dagster._daemon", "run", *quiet, "-w", workspace),
    }
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(settings.dagster.home),
        "WALGATE_CONFIG": str(config.resolve()),
        FORM_VARIABLE: form,
    }
    logs, folder = _log_folder(settings), Path.cwd()

    def plan(name: Program) -> Callable[[], subprocess.Popen[bytes]]:
        log = logs / f"{name}.log"
        log.unlink(missing_ok=True)
        return lambda: start_process(
            [sys.executable, "-m", *commands[name]],
            stack=settings.state_folder,
            log=log,
            environment=environment,
            folder=folder,
        )

    return {name: plan(name) for name in commands}


def _wait_until_ready(keeper: Supervisor, page: Page, logs: Path, stop: threading.Event) -> None:
    """Wait until the page answers and shows our code loaded, or until `stop`."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while not stop.wait(_POLL_S):
        location = page.read_location()
        if location is not None and location.is_loaded:
            return
        if location is not None and location.problem is not None:
            raise WalgateError(
                f"the pipeline did not load: {location.problem}",
                fix=f"correct the cause; see {logs / 'code-server.log'}",
                retry=Retry.AFTER_FIX,
            )
        ended = keeper.find_ended()
        if ended is not None:
            name, code = ended
            raise WalgateError(
                f"Dagster's {name} ended at its start, exit {code}",
                fix=f"see {logs / name}.log",
                retry=Retry.LATER,
            )
        if time.monotonic() > deadline:
            raise WalgateError(
                f"Dagster was not ready after {_START_DEADLINE_S:.0f} s",
                fix=f"see the logs in {logs}; try again when the machine is less busy",
                retry=Retry.LATER,
            )


def _watch_tables(settings: Settings, page: Page, finished: threading.Event) -> None:
    """Load the code again when the log announces a table that has no asset yet."""
    lake, keys = Lake.of(settings), AssetKeys.of(settings)
    known: set[dg.AssetKey] = set()
    while not finished.wait(_WATCH_S):
        try:
            announced = {keys.find_table(r.table) for r in lake.read_relations().values()}
        except (OSError, DeltaError):
            # A commit is under way, or the disk fails: the next look tries again.
            continue
        if announced <= known:
            continue
        assets = page.read_assets()
        if assets is None:
            continue
        if missing := announced - assets:
            _logger.info("tables found", extra={"fields": {"tables": len(missing)}})
            location = page.reload_location()
            if location is None:
                continue
            if location.problem is not None:
                fields = {"problem": location.problem}
                _logger.warning("pipeline unloadable", extra={"fields": fields})
        # A table that has no asset after the reload causes no further reload.
        known |= announced


def _log_folder(settings: Settings) -> Path:
    return settings.state_folder / "dagster-logs"
