"""One source database, its slots, a lake, and `walgate replicate` as a real child process."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.settings import Settings, load_settings
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_spark import quick_spark
from tests.lakes import find_store, find_store_of_children, locate_lake, mirror_lake, path_of
from tests.postgres_server import Database
from tests.truth import explain_difference, make_truth_slot, read_log, read_staged, read_truth
from tests.walgate_command import Answer, run_walgate, walgate_command, walgate_environment

# Seconds. On a busy machine, a store that fails often takes minutes.
DEADLINE_S = 300.0
NO_REDIS = "unix:///nonexistent/redis.sock"


class Pipeline:
    """A configuration in a folder, and the captures that a test runs with it."""

    def __init__(
        self,
        database: Database,
        folder: Path,
        *,
        dsn: str | None = None,
        redis: str = NO_REDIS,
        lake: ObjectPlace | None = None,
    ) -> None:
        """Make publication, slot and truth slot, in this order, and write walgate.toml.

        The lake is in the folder, or at a place in an object store.
        """
        self.database = database
        self.folder = folder
        self.lake = lake or locate_lake(folder / "lake")
        self.slot = f"s_{database.name}"
        self.truth_slot = f"t_{database.name}"
        self.environment: dict[str, str] = {}
        self._numbers = itertools.count()
        self.children: list[ChildProcess] = []
        database.execute("create publication walgate for all tables")
        database.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot])
        make_truth_slot(database, self.truth_slot)
        self.write_configuration(dsn or database.dsn, redis)

    @property
    def spool(self) -> Path:
        """The folder of the spool, which is on this host even if the lake is not."""
        return self.load_settings().lake.spool

    @property
    def root(self) -> Path:
        """The folder of the lake. If the lake is in a store, this is a new copy of it."""
        if isinstance(self.lake, ObjectPlace):
            mirror_lake(self.lake, self.folder / "copy of the lake")
            return self.folder / "copy of the lake"
        return path_of(self.lake)

    def write_configuration(self, dsn: str, redis: str = NO_REDIS) -> None:
        """Write walgate.toml."""
        lines = [
            "[source]",
            f'dsn = "{dsn}"',
            f'slot = "{self.slot}"',
            "[lake]",
            *self._describe_lake(),
            "[redis]",
            f'url = "{redis}"',
            *quick_spark(),
            "[capture]",
            "batch_seconds = 0.2",
            "heartbeat_seconds = 2",
        ]
        (self.folder / "walgate.toml").write_text("\n".join(lines) + "\n")

    def _describe_lake(self) -> list[str]:
        if not isinstance(self.lake, ObjectPlace):
            return ['root = "lake"']
        store = self.lake.store
        if store == find_store():
            store = find_store_of_children() or store
        options = ", ".join(f'{name} = "{value}"' for name, value in store.options)
        return [f'root = "{self.lake}"', f"storage_options = {{ {options} }}"]

    def load_settings(self, **environment: str) -> Settings:
        """The configuration as it is now; keywords are variables of the environment."""
        return load_settings(self.folder / "walgate.toml", self.environment | environment)

    def make_slot_again(self) -> None:
        """Give capture a new slot, for a publication that is younger than the old one."""
        self.database.query("select pg_drop_replication_slot(%s)", [self.slot])
        create = "select pg_create_logical_replication_slot(%s, 'pgoutput')"
        self.database.query(create, [self.slot])

    def start(self, *arguments: str, **environment: str) -> ChildProcess:
        """Start a capture; keywords are variables of its environment."""
        child = ChildProcess(
            walgate_command("replicate", *arguments, "--config", self.folder / "walgate.toml"),
            log=self.folder / f"capture-{next(self._numbers)}.log",
            environment=walgate_environment(self.environment | environment),
        )
        self.children.append(child)
        return child

    def start_streaming(self, *arguments: str, **environment: str) -> ChildProcess:
        """Start a capture and wait until it has the slot and streams."""
        child = self.start(*arguments, **environment)
        self.wait_for_line(child, "capture started")
        return child

    def wait_for_line(self, child: ChildProcess, text: str) -> None:
        """Wait until a running capture has said something."""
        self.wait_for_lines(child, text, 1)

    def wait_for_lines(self, child: ChildProcess, text: str, count: int) -> None:
        """Wait until a running capture has said something so many times."""

        def said() -> bool:
            if child.output().count(text) >= count:
                return True
            assert child.is_running, f"capture ended, exit {child.exit_code}:\n{child.output()}"
            return False

        wait_for(said, DEADLINE_S, f"capture to say {text!r}")

    def catch_up(self, **environment: str) -> Answer:
        """Stage all that is committed now."""
        answer = run_walgate(
            "replicate",
            "--until-current",
            folder=self.folder,
            environment=self.environment | environment,
            deadline_s=DEADLINE_S,
        )
        assert answer.exit_code == 0, answer
        return answer

    def finish(self, child: ChildProcess, number: signal.Signals = signal.SIGTERM) -> None:
        """Let a capture drain, which must succeed."""
        assert child.stop(number) == 0, child.output()

    def require_truth(self) -> int:
        """Fail unless the log is what the source committed; give the number of transactions."""
        truth = read_truth(self.database, self.truth_slot)
        difference = explain_difference(truth, read_log(self.root))
        assert difference is None, difference
        return len(truth)

    def staged(self) -> int:
        """Give the staged LSN; 0 before the first epoch."""
        return read_staged(self.root) or 0

    def wait_until_staged(self, lsn: int) -> None:
        """Wait until the log has come to an LSN."""

        def is_staged() -> bool:
            if self.staged() >= lsn:
                return True
            ended = [child for child in self.children if not child.is_running]
            assert len(ended) < len(self.children), ended[-1].output()
            return False

        wait_for(is_staged, DEADLINE_S, f"staging to reach {lsn}")

    def current_lsn(self) -> int:
        """Give where the server's WAL is written to."""
        return int(self.database.query("select pg_current_wal_lsn() - '0/0'")[0][0])

    def unnamed_parts(self) -> set[str]:
        """Give the files in the log's folder that no commit names."""
        folder = self.root / "staging" / "changes"
        if not DeltaTable.is_deltatable(str(folder)):
            return set()
        files = {path.name for path in folder.glob("part-*.parquet")}
        named = DeltaTable(folder).file_uris()
        return files - {Path(uri).name for uri in named}

    def wait_for_unnamed_part(self) -> None:
        """Wait until a capture stands between a part and its commit."""
        wait_for(self.unnamed_parts, DEADLINE_S, "a part without its commit")

    def slot_facts(self) -> dict[str, Any]:
        """Give where the slot is and who consumes it."""
        ((confirmed, pid),) = self.database.query(
            "select confirmed_flush_lsn - '0/0', active_pid from pg_replication_slots"
            " where slot_name = %s",
            [self.slot],
        )
        return {"confirmed": int(confirmed), "pid": pid}

    def end(self) -> None:
        """Kill what still runs."""
        for child in self.children:
            if child.is_running:
                with contextlib.suppress(ProcessLookupError):
                    child.send(signal.SIGCONT)
                child.kill()
            child.wait()


@pytest.fixture
def make_pipeline(tmp_path: Path) -> Iterator[Callable[..., Pipeline]]:
    """Lend a maker of pipelines, `(database, **settings)`; their captures end with the test."""
    made: list[Pipeline] = []

    def make(database: Database, **settings: Any) -> Pipeline:
        folder = tmp_path / f"pipeline-{len(made)}"
        folder.mkdir()
        made.append(Pipeline(database, folder, **settings))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.end()


@pytest.fixture
def pipeline(database18: Database, make_pipeline: Callable[..., Pipeline]) -> Pipeline:
    """Lend a pipeline on a fresh database, where the version does not matter."""
    return make_pipeline(database18)
