from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc_core.settings import TableSettings
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.lake.ledger import find_cut
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.query.as_of import table_at
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import locate_lake
from tests.spark import oracle
from tests.spark.log_writer import LogWriter
from tests.spark.recorded_log import RecordedLog, read_texts
from tests.spark.small_lake import MERGE_ONLY
from tests.spark.source_model import SourceTable, run_transaction

SEED = 20261121


def make_tables() -> list[SourceTable]:
    return [
        SourceTable("plain", "d"),
        SourceTable("whole", "f", deferrable=True),
        SourceTable(
            "pair",
            "d",
            keys=["k", "code"],
            columns=["k", "n", "code", "v", "big"],
            key_form="{}.50",
        ),
    ]


class World:
    """One log of random histories, merged in rounds with random cuts."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        seed: int,
        transactions: int,
        *,
        limits: MergeLimits = DEFAULT_LIMITS,
    ) -> None:
        rng = random.Random(seed)
        self.spark = spark
        # One of the tables has deletion vectors.
        rules = {"public.whole": TableSettings(deletion_vectors=True)}
        self.lake = Lake(locate_lake(folder / "lake"), rules=rules)
        writer = LogWriter(self.lake)
        writer.begin_epoch(16)
        late = SourceTable("late", "d")
        for _ in range(20):
            run_transaction(rng, late, keys=30)
        self.log = RecordedLog(writer, rng, [*make_tables(), late])
        commits = 4
        for i in range(commits):
            self.log.record(transactions // commits)
            writer.commit(repeat=rng.randrange(5))
            if i == commits // 2:
                self.log.missing["added"] = "7"
                self.log.tables[0].add_column("added", "7")
                self.log.tables[1].add_column("note", None)
        self.entries = sum(len(t) for rows in self.log.logged.values() for t in rows)
        self.rounds: list[Round] = merge_until(
            spark, self.lake, round_rows=self.entries // 2, limits=limits
        )

    def read(self, table: SourceTable) -> DataFrame:
        path = str(self.lake.locate(self.log.announce(table).table))
        return self.spark.read.format("delta").load(path)

    def versions(self) -> dict[str, int]:
        found = {}
        for table in self.log.tables:
            delta = open_table(self.lake.locate(self.log.announce(table).table))
            assert delta is not None
            found[table.name] = delta.version()
        return found


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    # By other limits, tables as small as these would be written whole.
    folder = tmp_path_factory.mktemp("world")
    return World(spark, folder, SEED, transactions=120, limits=MERGE_ONLY)


def check_world(world: World) -> None:
    assert len(world.rounds) > 1
    assert not any(done.halted for done in world.rounds)
    for table in world.log.tables[:-1]:
        assert read_texts(world.read(table), table) == table.truth(), table.name
        told = [
            done.tables[f"public.{table.name}"]
            for done in world.rounds
            if f"public.{table.name}" in done.tables
        ]
        assert told[-1].rows == len(table.truth()) == sum(m.inserted - m.deleted for m in told)
    late = world.log.tables[-1]
    expected = oracle.fold(world.log.logged["late"], [0], whole=False, state={})
    assert read_texts(world.read(late), late) == expected


def test_rounds_with_any_cuts_leave_what_the_source_has(world: World) -> None:
    check_world(world)
    ways = {merged.way for done in world.rounds for merged in done.tables.values()}
    assert ways == {WritePlan.REWRITE, WritePlan.MERGE}, "new tables, and tables that were there"


def test_the_plain_python_fold_leaves_what_the_source_has() -> None:
    rng = random.Random(SEED)
    for table in [SourceTable("whole", "f", deferrable=True), SourceTable("key", "d")]:
        state: oracle.Rows = {}
        for _ in range(300):
            made = run_transaction(rng, table, keys=20, truncates=0.01)
            logged = [[vars(entry) for entry in made]]
            state = oracle.fold(logged, [0], whole=table.identity == "f", state=state)
            assert state == table.truth()


def test_a_second_run_changes_nothing(world: World) -> None:
    versions, cut = world.versions(), find_cut(world.lake)
    assert merge_until(world.spark, world.lake, round_rows=world.entries) == []
    assert world.versions() == versions
    assert find_cut(world.lake) == cut


def test_a_table_reads_at_any_lsn_whether_merged_past_it_or_not(world: World) -> None:
    rng = random.Random(SEED)
    for table in world.log.tables[:-1]:
        lsn = rng.choice(sorted(world.log.truths[table.name]))
        at = world.log.bound(lsn + rng.randrange(16))
        reading = table_at(world.spark, world.lake, world.log.announce(table).table, at)
        truth = world.log.truths[table.name][lsn]
        shown = {key: list(texts) for key, texts in read_known(reading.rows, table).items()}
        assert shown == {k: t[: len(next(iter(shown.values()), t))] for k, t in truth.items()}


def read_known(rows: DataFrame, table: SourceTable) -> dict[tuple[str, ...], list[str | None]]:
    """The columns that the table had at that LSN."""
    columns = [name for name in table.columns if name in rows.columns]
    return read_texts(
        rows, SourceTable(table.name, table.identity, keys=table.keys, columns=columns)
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_many_random_histories(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    check_world(World(spark, tmp_path, seed, transactions=600))
