"""Random histories in which a lake is also maintained, often without any retention or grace."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from cdc_core.errors import LakeError
from cdc_core.settings import TableSettings
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.delta import committer
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.leases import Lease
from spark_jobs.lake.ledger import find_oldest_bound
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import list_tables, table_at
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.target.limits import DEFAULT_LIMITS
from tests.fix_spark import make_quick
from tests.lakes import locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.maintenance.maintained_lake import Keeper
from tests.spark.recorded_log import RecordedLog, read_texts
from tests.spark.small_lake import MERGE_ONLY
from tests.spark.source_model import SourceTable


class World:
    """A lake, its log with the truth at each LSN, and what maintains both."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.spark = make_quick(spark)
        rules = {"public.whole": TableSettings(deletion_vectors=self.rng.random() < 0.3)}
        self.lake = Lake(locate_lake(folder / "lake"), rules=rules)
        self.writer = LogWriter(self.lake)
        self.writer.begin_epoch(16)
        tables = [SourceTable("plain", "d"), SourceTable("whole", "f", deferrable=True)]
        self.log = RecordedLog(self.writer, self.rng, tables)
        self.keeper = Keeper(self.lake, folder / "spool")
        self.confirmed = 0
        self.leases: list[tuple[int, Lease]] = []
        self.ends: list[int] = []
        self.logged: set[int] = set()

    def play(self, steps: int) -> None:
        moves = [
            *(self.stage, self.stage, self.merge, self.merge, self.maintain, self.tend),
            *(self.tend, self.read, self.lease),
        ]
        self.stage()
        for _ in range(steps):
            self.rng.choice(moves)()
        self.check()

    def stage(self) -> None:
        for _ in range(self.rng.randrange(1, 4)):
            self.log.record(self.rng.randrange(1, 3), keys=12, truncates=0.02)
            # A transaction that changed nothing is not in the log.
            self.logged |= {row["commit_lsn"] for row in self.writer.pending}
            self.ends.append(self.writer.commit(repeat=self.rng.randrange(2)))

    def merge(self) -> None:
        chosen = {"public.plain"} if self.rng.random() < 0.2 else None
        limits = self.rng.choice([DEFAULT_LIMITS, MERGE_ONLY])
        size = self.rng.choice([3, 1000])
        merge_until(self.spark, self.lake, round_rows=size, tables=chosen, limits=limits)

    def maintain(self) -> None:
        part = timedelta(milliseconds=self.rng.choice([0, 0, 500, 4000]))
        interval = timedelta(milliseconds=self.rng.choice([1, 100, 2000]))
        grace, life = (timedelta(milliseconds=self.rng.choice([0, 0, 500])) for _ in range(2))
        keeping = Keeping(part, grace, part / 4, part / 2, interval, 2 * interval, life)
        assert self.keeper.maintain(keeping).problems == ()

    def tend(self) -> None:
        self.confirmed = max(self.confirmed, self.rng.choice(self.ends))
        grace, life = (self.rng.choice([0, 0, 0.5]) for _ in range(2))
        self.keeper.tend(self.confirmed, grace_s=grace, commit_life_s=life)
        # A restart of capture must find every transaction that the slot may send again.
        expected = {lsn for lsn in self.logged if lsn >= self.confirmed}
        assert expected <= {*self.keeper.read_transactions(since=self.confirmed)}
        assert self.keeper.read_transactions(), "nothing to compare a restored server with"

    def lease(self) -> None:
        if self.leases and self.rng.random() < 0.5:
            self.leases.pop()[1].end()
            return
        oldest = find_oldest_bound(self.lake)
        readable = [end for end in self.ends if oldest is not None and end >= oldest.lsn]
        if readable:
            lsn = self.rng.choice(readable)
            self.leases.append((lsn, Lease(self.lake, self.log.bound(lsn))))

    def read(self) -> None:
        for lsn in [self.rng.choice(self.ends), *(lsn for lsn, _ in self.leases)]:
            is_leased = any(lsn == leased for leased, _ in self.leases)
            self.check_at(lsn, must_read=is_leased)

    def check_at(self, lsn: int, *, must_read: bool) -> None:
        """Compare all tables at an LSN with the source, unless nothing of that time is kept."""
        oldest = find_oldest_bound(self.lake)
        if not must_read and oldest is not None and lsn < oldest.lsn:
            with suppress(LakeError):  # Such an LSN can be read until the log is trimmed.
                self.compare_at(lsn)
        else:
            self.compare_at(lsn)

    def compare_at(self, lsn: int) -> None:
        bound = find_bound_at(self.lake, Lsn(lsn))
        for table in self.log.tables:
            name, truth = self.log.announce(table).table, self.log.truths[table.name][lsn]
            if truth or name in list_tables(self.lake):
                found = self.read_table(name, bound)
                assert (None if found is None else read_texts(found, table)) in (
                    [truth] if truth else [truth, None]
                )

    def read_table(self, name: TableName, bound: Bound) -> DataFrame | None:
        """The rows of a table; None if nothing of the table came up to the bound."""
        try:
            return table_at(self.spark, self.lake, name, bound).rows
        except LakeError as error:
            if "holds no rows" in error.message:
                return None
            raise

    def check(self) -> None:
        self.merge()
        merge_until(self.spark, self.lake, round_rows=1000)
        for lsn in {*self.rng.sample(self.ends, min(3, len(self.ends))), self.ends[-1]}:
            self.check_at(lsn, must_read=lsn == self.ends[-1])
        for lsn, lease in self.leases:
            self.check_at(lsn, must_read=True)
            lease.end()


@pytest.fixture(autouse=True)
def _write_checkpoints_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(committer, "_CHECKPOINT_INTERVAL", 4)


@pytest.mark.parametrize("seed", range(1))
def test_a_maintained_lake_reads_as_its_source_was(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    World(spark, tmp_path, seed).play(14)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 1500))
def test_many_maintained_lakes_read_as_their_sources_were(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    World(spark, tmp_path, seed).play(14)
