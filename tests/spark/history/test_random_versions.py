"""A history sliced at any LSN has the rows of the source there, wherever rounds end.

The rows of the source at the end of each transaction are the only thing that is compared with.
Random reads of a backfill that find rows as they are must add no version.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cdc_core.settings import TableSettings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import Lsn, TableMode
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import read_requests
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.versions_at import versions_at
from tests.lakes import copy_lake, locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.recorded_log import RecordedLog, Truth, read_texts
from tests.spark.source_model import SourceTable

SEED = 20261130
HISTORY = TableSettings(modes=(TableMode.CURRENT, TableMode.HISTORY))


class World:
    """A log of random transactions, with reads of a backfill between them."""

    def __init__(self, folder: Path, seed: int, transactions: int) -> None:
        self.rng = rng = random.Random(seed)
        self.lake = Lake(locate_lake(folder / "lake"), rules={"*.*": HISTORY})
        writer = LogWriter(self.lake)
        writer.begin_epoch(16)
        self.tables = [
            SourceTable("plain", "d"),
            SourceTable("whole", "f", deferrable=True),
            SourceTable("pair", "d", keys=["k", "code"], columns=["k", "n", "code", "v", "big"],
                        key_form="{}.50"),
        ]  # fmt: skip
        self.log = RecordedLog(writer, rng, self.tables)
        for part in range(6):
            self.log.record(transactions // 6, keys=12, truncates=0.02)
            self.backfill()
            writer.commit(repeat=rng.randrange(5))
            if part == 2:
                self.log.missing["added"] = "7"
                self.tables[0].add_column("added", "7")
                self.tables[1].add_column("note", None)

    def backfill(self) -> None:
        """Read some rows as they are, or all of them, and then sweep."""
        for table in self.tables:
            relation, rows = self.log.announce(table), table.rows
            is_whole = self.rng.random() < 0.5
            start = [self.log.writer.epoch, self.log.writer.lsn - 8, 0]
            chosen = rows if is_whole else self.rng.sample(rows, len(rows) // 2)
            entries = [
                (relation, {"op": "read", "values": row.texts(table.columns, table.keys)})
                for row in chosen
            ]
            if is_whole:
                detail = f'{{"start": {start}, "low": null, "high": null}}'
                entries.append((relation, {"op": "sweep", "detail": detail}))
            end = self.log.writer.add(entries)
            for other in self.tables:
                self.log.truths[other.name][end] = other.truth()

    def find_target(self, table: SourceTable) -> Target:
        return Target(self.log.announce(table).table, TargetKind.HISTORY)

    def copy_to(self, folder: Path) -> Lake:
        copied = Lake(locate_lake(folder), rules=self.lake.rules)
        copy_lake(self.lake.root, copied.root)
        return copied


def check_slices(versions: DataFrame, world: World, table: SourceTable, lsns: list[int]) -> None:
    """The versions that are valid at an LSN are the rows of the source there."""
    for lsn in lsns:
        begun = F.col("_from_lsn") <= lsn
        ended = F.coalesce(F.col("_to_lsn") <= lsn, F.lit(False))
        expected = world.log.truths[table.name][lsn]
        # A column that came later has its missing value in open versions, and NULL in closed ones.
        width = max((len(texts) for texts in expected.values()), default=len(table.columns))
        narrow = SourceTable(
            table.name, table.identity, keys=table.keys, columns=table.columns[:width]
        )
        found: Truth = read_texts(versions.where(begun & ~ended), narrow)
        assert found == expected, (table.name, lsn)


def list_versions(versions: DataFrame) -> list[tuple[Any, ...]]:
    rows = versions.select(*(f"`{name}`" for name in sorted(versions.columns))).collect()
    return sorted(tuple(map(str, row)) for row in rows)


def check_shape(rows: list[Any], table: SourceTable) -> None:
    """The versions of a key follow each other, and only its newest one is open."""
    by_key: dict[tuple[Any, ...], list[Any]] = {}
    for row in sorted(rows, key=lambda row: (row["_from_lsn"], row["_to_lsn"] or 1 << 62)):
        by_key.setdefault(tuple(row[name] for name in table.keys), []).append(row)
    for versions in by_key.values():
        for one, after in itertools.pairwise(versions):
            assert one["_to_lsn"] is not None
            assert one["_from_lsn"] < one["_to_lsn"] <= after["_from_lsn"]
            assert one["_valid_from"] <= one["_valid_to"] <= after["_valid_from"]
            if after["_continues"]:
                assert one["_to_lsn"] == after["_from_lsn"]
        for one in versions:
            assert one["_is_current"] is (one["_to_lsn"] is None) is (one["_closed_by"] is None)
            assert one["_opened_by"] in {"insert", "update"}, "no read found another row"


@pytest.mark.parametrize(
    ("seed", "transactions"),
    [
        pytest.param(SEED, 36, marks=pytest.mark.timeout(900)),
        *(
            pytest.param(seed, 120, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
            for seed in range(8)
        ),
    ],
)
def test_a_history_is_the_source_at_each_lsn_wherever_rounds_end(
    spark: SparkSession, tmp_path: Path, seed: int, transactions: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails.
    world = World(tmp_path, seed, transactions)
    end = world.log.writer.lsn
    entries = sum(len(t) for rows in world.log.logged.values() for t in rows)
    at_once = {}
    for rounds in (1, 2, 5):
        lake = world.copy_to(tmp_path / f"in {rounds}")
        if rounds == 1:  # Nothing is merged yet.
            for table in world.tables:
                read = versions_at(spark, lake, world.find_target(table), Bound(1, Lsn(end)))
                at_once[table.name] = list_versions(read.rows)
        done = merge_until(spark, lake, round_rows=max(1, entries // rounds))
        assert len(done) >= min(rounds, 2)
        assert not read_requests(lake), "no merge has found damage"
        for table in world.tables:
            folder = lake.locate_target(world.find_target(table))
            stored = spark.read.format("delta").load(folder.uri)
            assert list_versions(stored) == at_once[table.name], (table.name, rounds)
            if rounds == 1:
                check_shape(stored.collect(), table)
                lsns = world.rng.sample(sorted(world.log.truths[table.name]), 8)
                check_slices(stored, world, table, [*lsns, end])
                lsn = world.rng.choice(lsns)
                sliced = versions_at(spark, lake, world.find_target(table), Bound(1, Lsn(lsn))).rows
                check_slices(sliced.where("_is_current"), world, table, [lsn])
