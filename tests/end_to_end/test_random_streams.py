"""Random histories through the whole pipeline: each table ends as its source, or rightly halted.

A history is the life of one table: its columns, key and identity are drawn, then statements of
three connections whose transactions interleave, and schema changes of all sorts. A world is several
histories that share a database, a stream and a lake, for a merge of many tables costs less than
many merges; all that is drawn for a world comes from its seed, only moments do not. While it lives,
captures cut the stream at random and are killed, at named points and at any moment; between them
merges end in mid-round (by an exception at a named point: the state on disk is a killed one's).

What a schema change must lead to is written beside it, in `random_schema_changes.py`.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest
from pyspark.sql import SparkSession

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.vocabulary import TableName
from spark_jobs.delta import committer
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge import merge, rounds
from spark_jobs.merge.rounds import merge_until
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.end_to_end.random_judge import explain, read_transactions
from tests.end_to_end.random_source import RandomSource
from tests.end_to_end.random_tables import RandomTable
from tests.end_to_end.test_log_equals_truth import draw_sizes
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.fix_postgres import lend_database
from tests.fix_spark import make_quick
from tests.postgres_server import Database
from tests.spark.type_values import ADDED_LATER, make_types

# Seed, version of the server, histories: 25 in all, and 500 in soak, one version after the other.
SAMPLE = ((0, 18, 13), (1, 15, 12))
SOAK = tuple((seed, (15, 18)[seed % 2], 10) for seed in range(100, 150))
PHASES = 3
# For each history in each phase, by whichever connection.
STEPS = 15
PUBLISHED = ("listed", "listed", "for all tables", "for tables in schema public")
CRASH_POINTS = ("before_delta_commit", "after_delta_commit", "after_flush", "while_spooling")
MERGE_POINTS = (
    "before_merge_commit",
    "before_files_committed",
    "after_merge_commit",
    "before_cut",
    "after_cut",
)


class MergeDiedError(Exception):
    """A merge was ended where a kill could have ended it."""


class World:
    """Some histories on one database, their stream, and their lake."""

    published: Sequence[str] = PUBLISHED

    def __init__(
        self, seed: int, histories: int, database: Database, make_pipeline: Callable[..., Pipeline]
    ) -> None:
        """Make the tables, the publication, then the slots."""
        self.rng = random.Random(seed)
        kinds = make_types(database)
        database.execute(ADDED_LATER)
        database.execute(f"alter database {database.name} set logical_decoding_work_mem = '64kB'")
        database.execute("create table fence (id serial primary key)")
        tables = [self.draw_table(i, kinds) for i in range(histories)]
        published = self.rng.choice(self.published)
        self.source = RandomSource(database, self.rng, tables, listed=published == "listed")
        self.pipeline = make_pipeline(database)
        if published == "listed":
            published = "for table fence, " + ", ".join(t.quoted for t in tables)
        database.execute("drop publication walgate")
        database.execute(
            f"create publication walgate {published} with (publish_via_partition_root = true)"
        )
        self.pipeline.make_slot_again()
        self.lake = Lake(self.pipeline.lake)
        self.names = [str(TableName("public", table.name)) for table in tables]
        self.child: ChildProcess | None = None

    def draw_table(self, number: int, kinds: Mapping[str, list[str]]) -> RandomTable:
        """Draw one table."""
        return RandomTable.draw(self.rng, number, kinds)

    def live(self, spark: SparkSession) -> None:
        """Let everything happen, then come to rest."""
        for phase in range(PHASES):
            if self.child is None and self.rng.random() < 0.7:
                self.start_capture()
            self.source.change_some(0.4)
            self.source.take_steps(STEPS * len(self.names))
            self.source.settle()
            self.source.show()
            if phase + 1 == PHASES or self.rng.random() < 0.7:
                self.catch_up()
            self.end_capture()
            if phase and phase + 1 < PHASES:
                self.merge_some(spark)
        assert self.source.committed
        budget = self.rng.choice((200, 1_000_000))
        merge_until(spark, self.lake, round_rows=budget, tables=self.names)
        # A capture that was left alone may have staged a mark meanwhile.
        again = merge_until(spark, self.lake, round_rows=budget, tables=self.names)
        assert not any(done.tables for done in again)

    def start_capture(self) -> None:
        """Start a capture, which may be killed at a named point."""
        crash = {}
        if self.rng.random() < 0.6:
            point = self.rng.choice(CRASH_POINTS)
            crash = {"WALGATE_CRASH_AT": f"{point}:{self.rng.randint(1, 6)}"}
        sizes = draw_sizes(self.rng)
        if crash and "spool" in crash["WALGATE_CRASH_AT"]:
            sizes["WALGATE_CAPTURE__SPOOL_BYTES"] = "1kB"
        self.child = self.pipeline.start(**sizes, **crash)
        child = self.child
        wait_for(
            lambda: "capture started" in child.output() or not child.is_running,
            DEADLINE_S,
            "a capture to start",
        )

    def end_capture(self) -> None:
        """Leave the capture alone, kill it, or let it drain."""
        child, ending = self.child, self.rng.choice(("stay", "kill", "kill", "drain"))
        if child is None or ending == "stay":
            return
        if child.is_running and ending == "kill":
            child.kill()
        elif child.is_running:
            child.stop(signal.SIGTERM)
        self.child = None

    def catch_up(self) -> None:
        """Have all staged that is committed; by a capture in this process where none lives."""
        sizes = draw_sizes(self.rng)
        if self.child is not None:
            child = self.child
            lsn = self.pipeline.current_lsn()
            self.pipeline.database.execute("insert into fence default values")
            wait_for(
                lambda: self.pipeline.staged() > lsn or not child.is_running,
                DEADLINE_S,
                "the log to come to the fence",
            )
            if not child.is_running:
                self.child = None
        if self.child is None:
            settings = self.pipeline.load_settings(**sizes)
            run_capture(settings, RunLimit(threading.Event(), until_current=True))
        self.source.note_seen()

    def merge_some(self, spark: SparkSession) -> None:
        """Merge what is staged of some tables; a merge that dies is left where it was."""
        point, dies_at = self.rng.choice(MERGE_POINTS), self.rng.choice((1, 2, 99))
        chosen = self.rng.sample(self.names, len(self.names) // 3)
        arrivals = 0

        def reach(name: str) -> None:
            nonlocal arrivals
            arrivals += name == point
            if name == point and arrivals == dies_at:
                raise MergeDiedError

        with pytest.MonkeyPatch.context() as patch:
            for module in (merge, committer, rounds):
                patch.setattr(module, "reach", reach)
            with contextlib.suppress(MergeDiedError):
                merge_until(spark, self.lake, round_rows=1_000_000, tables=chosen)

    def judge(self) -> list[str]:
        """Say what is wrong with each table that is wrong."""
        leaves = {leaf: table.name for table in self.source.tables for leaf in table.leaves}
        transactions = read_transactions(self.pipeline.database, self.pipeline.truth_slot, leaves)
        states = read_states(self.lake)
        wrong = []
        for table in self.source.tables:
            name = TableName("public", table.name)
            path = self.lake.locate(name)
            held = open_table(path)
            rows = None if held is None else held.to_pyarrow_table()
            found = explain(self.source, transactions, table.name, states.get(str(name)), rows)
            if found is not None:
                wrong.append(f"{name}: {found}")
        return wrong


@pytest.mark.core
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("seed", "version", "histories"),
    [*SAMPLE, *(pytest.param(*world, marks=pytest.mark.soak) for world in SOAK)],
)
def test_every_table_of_a_random_history_is_its_source_s_or_rightly_halted(
    spark: SparkSession,
    make_pipeline: Callable[..., Pipeline],
    request: pytest.FixtureRequest,
    seed: int,
    version: int,
    histories: int,
) -> None:
    with lend_database(request.getfixturevalue(f"postgres{version}")) as database:
        world = World(seed, histories, database, make_pipeline)
        try:
            world.live(make_quick(spark))
            wrong = world.judge()
            assert not wrong, "\n".join(wrong)
        finally:
            world.source.close()
            world.pipeline.end()
