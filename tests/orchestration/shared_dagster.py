"""One Dagster for several code locations: a daemon, and a code server for each location."""

from __future__ import annotations

import importlib.resources
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
from dagster._core.scheduler.instigation import SensorInstigatorData

import orchestration
from orchestration.stack.processes import STACK_VARIABLE, end_processes, find_processes
from tests.child_process import ChildProcess
from tests.walgate_command import REPOSITORY, walgate_environment

_QUIET = ("--log-level", "warning")
_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class Location:
    """A code location of a shared Dagster: what it loads, and with which variables."""

    name: str
    module: str
    environment: Mapping[str, str]


class SharedDagster:
    """The processes over one home, from their start to their end."""

    def __init__(self, folder: Path, sockets: Path, locations: list[Location]) -> None:
        """Start all of them; nothing is loaded yet. The path of a socket must be short."""
        self.folder = folder
        home, workspace = folder / "home", folder / "workspace.yaml"
        home.mkdir()
        packaged = importlib.resources.files(orchestration) / "dagster.yaml"
        (home / "dagster.yaml").write_text(packaged.read_text(encoding="utf-8"))
        # It makes the databases of the home, which several processes at once would not survive.
        self.instance = dg.DagsterInstance.from_config(str(home))
        self._environment = {"DAGSTER_HOME": str(home), STACK_VARIABLE: str(folder)}
        servers = []
        self.servers: dict[str, ChildProcess] = {}
        for location in locations:
            place = sockets / f"{location.name}.sock"
            servers.append({"grpc_server": {"socket": str(place), "location_name": location.name}})
            self.servers[location.name] = self._start(
                *("dagster", "code-server", "start", *_QUIET, "--location-name", location.name),
                *("--socket", place, "-m", location.module, "-d", REPOSITORY),
                log=f"{location.name}.log",
                environment=location.environment,
            )
        workspace.write_text(json.dumps({"load_from": servers}))
        self.daemon = self._start(
            *("dagster._daemon", "run", *_QUIET, "-w", workspace), log="daemon.log"
        )

    def read_last_ticks(self, location: str) -> dict[str, float]:
        """Give when each sensor of a location that has ticked did so last, in Unix seconds."""
        ticks = {}
        for state in self.instance.all_instigator_state():
            origin = state.origin.repository_origin.code_location_origin
            data = state.instigator_data
            if origin.location_name == location and isinstance(data, SensorInstigatorData):
                ticks[state.instigator_name] = data.last_tick_timestamp or 0.0
        return ticks

    def stop_daemon(self) -> None:
        """Let nothing be launched any more; what runs goes on."""
        self.daemon.stop()

    def stop_servers(self) -> None:
        """End the code servers, with whatever they still run."""
        for server in self.servers.values():
            server.stop()

    def require_running(self) -> None:
        """Fail if its daemon or one of its code servers has ended."""
        ended = [child for child in (self.daemon, *self.servers.values()) if not child.is_running]
        assert not ended, self.describe()

    def is_nothing_left(self) -> bool:
        """Whether no process of it is alive."""
        return not find_processes(self.folder)

    def end(self) -> None:
        """End it and whatever it left."""
        for child in (self.daemon, *self.servers.values()):
            if child.is_running:
                child.kill()
        end_processes(self.folder, grace_s=_GRACE_S)
        self.instance.dispose()

    def describe(self) -> str:
        """Give what its processes wrote and how its runs are, for a failure."""
        runs = [
            f"{run.job_name} {run.status} {sorted(run.tags.items())}"
            for run in self.instance.get_runs()
        ]
        logs = [
            f"{log.name}:\n{log.read_text()[-3000:]}" for log in sorted(self.folder.glob("*.log"))
        ]
        return "\n".join([*runs, *logs])

    def _start(
        self, *arguments: str | Path, log: str, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        return ChildProcess(
            [sys.executable, "-m", *arguments],
            log=self.folder / log,
            environment=walgate_environment(self._environment | dict(environment or {})),
            guard_signal=signal.SIGTERM,
        )
