"""`walgate up` as a real child process over a pipeline, and its page asked by GraphQL."""

from __future__ import annotations

import http.client
import itertools
import json
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import dagster as dg
import psutil
import pytest

from orchestration.runs.hosting import WORKER_TAG
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.walgate_command import walgate_command, walgate_environment

READY_DEADLINE_S = 240.0
STOP_DEADLINE_S = 150.0
# As in the command lines of the three processes.
PROGRAMS = {"code-server": "code-server", "web": "dagster_webserver", "daemon": "dagster._daemon"}
REPOSITORY = {"repositoryName": "__repository__", "repositoryLocationName": "walgate"}
_NUMBERS = itertools.count()
ENVIRONMENT = {
    "WALGATE_SPARK__DRIVER_MEMORY": "1g",
    "WALGATE_SPARK__MASTER": "local[2]",
    # A run of its own for each table; a test that is about them asks for it.
    "WALGATE_BACKFILL__AUTOMATIC": "false",
}


def find_worker(instance: dg.DagsterInstance, job: str) -> psutil.Process | None:
    """Give the live process that signed the newest run of a job."""
    runs = instance.get_runs(dg.RunsFilter(job_name=job), limit=1)
    signed = runs[0].tags.get(WORKER_TAG) if runs else None
    if signed is None or not psutil.pid_exists(int(signed.split()[1])):
        return None
    return psutil.Process(int(signed.split()[1]))


class RunningDagster:
    """One `walgate up`, from its start to its end."""

    def __init__(
        self, pipeline: Pipeline, *, options: Sequence[str] = (), **environment: str
    ) -> None:
        """Start it on a free port, with options of `walgate`; it is not ready yet."""
        self.pipeline = pipeline
        self.state_folder = pipeline.folder / ".walgate"
        self.port = int(environment.pop("port", 0)) or find_free_port()
        settings = ENVIRONMENT | {"WALGATE_DAGSTER__PORT": str(self.port)}
        self.child = ChildProcess(
            walgate_command(*options, "up", "--config", pipeline.folder / "walgate.toml"),
            log=pipeline.folder / f"up-{next(_NUMBERS)}.log",
            environment=walgate_environment(pipeline.environment | settings | environment),
            # It ends its own processes, each of which leads a session.
            guard_signal=signal.SIGTERM,
        )

    @property
    def url(self) -> str:
        """Where its page is."""
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        """Wait until it says where its page is."""
        self._wait_for(lambda: self.url in self.child.output(), READY_DEADLINE_S, "walgate up")

    def find_program(self, name: str) -> psutil.Process | None:
        """Give the process of one of the three."""
        for process in psutil.Process(self.child.pid).children():
            try:
                if PROGRAMS[name] in process.cmdline():
                    return process
            except psutil.NoSuchProcess:
                continue
        return None

    def query(self, text: str, **variables: Any) -> dict[str, Any]:
        """Ask the page; fail where it answers with an error."""
        answer = self._ask(text, variables)
        assert answer is not None
        assert "errors" not in answer, answer["errors"]
        data: dict[str, Any] = answer["data"]
        return data

    def answers(self) -> bool:
        """Whether the page answers and our code is loaded."""
        text = "{ assetNodes { id } }"
        answer = self._ask(text, {})
        return bool(answer and answer.get("data", {}).get("assetNodes"))

    def read_ticks(self, sensor: str) -> list[dict[str, Any]]:
        """Give the newest ticks of a sensor, newest first; none while our code is not loaded."""
        data = self.query(
            "query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {"
            " ... on Sensor { sensorState { ticks(limit: 20)"
            " { timestamp status skipReason runIds error { message } } } } } }",
            selector=REPOSITORY | {"sensorName": sensor},
        )
        ticks: list[dict[str, Any]] = data["sensorOrError"].get("sensorState", {}).get("ticks", [])
        return ticks

    def read_runs(self, job: str) -> list[dict[str, Any]]:
        """Give the runs of a job, newest first."""
        data = self.query(
            "query($job: String!) { runsOrError(filter: {pipelineName: $job}) { ... on Runs {"
            " results { runId status startTime endTime tags { key value } } } } }",
            job=job,
        )
        runs: list[dict[str, Any]] = data["runsOrError"]["results"]
        return runs

    def find_worker(self, job: str) -> psutil.Process | None:
        """Give the live process that signed the newest run of a job; no page shows the tag."""
        with self._open_instance() as instance:
            return find_worker(instance, job)

    def read_tags(self, run_id: str) -> dict[str, str]:
        """Give all tags of a run, those too that no page shows."""
        with self._open_instance() as instance:
            run = instance.get_run_by_id(run_id)
        assert run is not None
        return dict(run.tags)

    def read_materializations(self, *key: str) -> list[dict[str, Any]]:
        """Give the newest materializations of an asset, newest first."""
        data = self.query(
            "query($keys: [AssetKeyInput!]) { assetNodes(assetKeys: $keys) {"
            " assetMaterializations(limit: 50) { runId timestamp metadataEntries { label"
            " ... on TextMetadataEntry { text } ... on IntMetadataEntry { intRepr }"
            " ... on FloatMetadataEntry { floatValue } } } } }",
            keys=[{"path": list(key)}],
        )
        (node,) = data["assetNodes"]
        found: list[dict[str, Any]] = node["assetMaterializations"]
        return found

    def wait_for_run(self, job: str, *statuses: str, after: str | None = None) -> dict[str, Any]:
        """Wait until the newest run of a job, another than `after`, has one of the statuses."""

        def find() -> dict[str, Any] | None:
            newest = next(iter(self.read_runs(job)), None)
            is_it = newest and newest["status"] in statuses and newest["runId"] != after
            return newest if is_it else None

        found = self._wait_for(find, READY_DEADLINE_S, f"a run of {job} to be {statuses}")
        assert isinstance(found, dict)
        return found

    def wait_until_streaming(self) -> None:
        """Wait until a replicate run holds the slot."""
        self._wait_for(
            lambda: self.pipeline.slot_facts()["pid"], READY_DEADLINE_S, "a run to hold the slot"
        )

    def finish(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to end and give its exit code."""
        self.child.send(number)
        return self.child.wait(STOP_DEADLINE_S)

    def find_left(self) -> list[psutil.Process]:
        """Give the live processes that bear the mark of its stack."""
        return [p for p in psutil.process_iter() if read_mark(p) == str(self.state_folder)]

    def end(self) -> None:
        """End it and whatever it left."""
        if self.child.is_running:
            self.child.kill()
        left = self.find_left()
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=STOP_DEADLINE_S)

    def describe(self) -> str:
        """Give what it and its programs wrote, for a failure."""
        logs = sorted((self.state_folder / "dagster-logs").glob("*.log"))
        parts = [self.child.output(), *(f"{log.name}:\n{log.read_text()[-2000:]}" for log in logs)]
        return "\n".join(parts)

    def _open_instance(self) -> dg.DagsterInstance:
        return dg.DagsterInstance.from_config(str(self.state_folder / "dagster"))

    def _wait_for(self, condition: Callable[[], Any], deadline_s: float, what: str) -> Any:
        def look() -> Any:
            assert self.child.is_running, self.describe()
            return condition()

        try:
            return wait_for(look, deadline_s, what)
        except AssertionError as error:
            error.add_note(self.describe())
            raise

    def _ask(self, text: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            body = json.dumps({"query": text, "variables": variables})
            connection.request("POST", "/graphql", body, {"Content-Type": "application/json"})
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()
        return answer


def read_mark(process: psutil.Process) -> str | None:
    """Give the stack that a process belongs to."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        mark: str | None = process.environ().get("WALGATE_STACK")
    except psutil.Error:
        return None
    return mark


def find_free_port() -> int:
    """Give a port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture
def start_dagster_on() -> Iterator[Callable[..., RunningDagster]]:
    """Lend a maker of `walgate up` over a pipeline; keywords are its environment."""
    made: list[RunningDagster] = []

    def start(pipeline: Pipeline, **environment: str) -> RunningDagster:
        made.append(RunningDagster(pipeline, **environment))
        return made[-1]

    yield start
    for dagster in made:
        dagster.end()


@pytest.fixture
def start_dagster(
    pipeline: Pipeline, start_dagster_on: Callable[..., RunningDagster]
) -> Callable[..., RunningDagster]:
    """Lend a maker of `walgate up` over the test's pipeline; keywords are its environment."""
    return partial(start_dagster_on, pipeline)
