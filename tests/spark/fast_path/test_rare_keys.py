"""Moved keys, keys of several rows, values that were not sent: Arrow folds as the oracle does."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc_core.layout import CHANGES_SCHEMA
from spark_jobs.fast_path.arrow_fold import ArrowOutcome, fold_by_arrow
from spark_jobs.fold.rows import find_converts
from spark_jobs.lake.lake import Lake
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.lakes import locate_lake
from tests.spark import oracle
from tests.spark.log_writer import LogWriter
from tests.spark.recorded_log import RecordedLog, read_texts
from tests.spark.small_lake import SmallLake
from tests.spark.source_model import SourceTable, run_transaction
from tests.spark.table_files import APART

SEED = 20261125


def make_tables() -> list[SourceTable]:
    pair = SourceTable("pair", "d", keys=["k", "code"], columns=["k", "n", "code", "v", "big"])
    # Inside a transaction a deferrable key may have several rows.
    shared = SourceTable("shared", "d", deferrable=True)
    return [SourceTable("plain", "d"), SourceTable("whole", "f", deferrable=True), pair, shared]


def apply(
    outcome: ArrowOutcome, rows: oracle.Rows, columns: list[str], keys: list[str]
) -> oracle.Rows | None:
    """The rows of a table after a fold; None if the fold does not hold for this table."""

    def name(row: dict[str, Any]) -> oracle.Key:
        return tuple(str(row[key]) for key in keys)

    if any(name(row) in rows for row in outcome.undecided.to_pylist()):
        return None
    arriving = outcome.rows.to_pylist()
    for carried in outcome.carried:
        for place, root in zip(carried.rows.tolist(), carried.roots.to_pylist(), strict=True):
            if name(root) not in rows:
                return None
            assert arriving[place][carried.column] is None
            arriving[place][carried.column] = rows[name(root)][columns.index(carried.column)]
    left = dict(rows)
    for row in outcome.gone.to_pylist():
        left.pop(name(row), None)
    for row in arriving:
        texts = [None if row[column] is None else str(row[column]) for column in columns]
        left[name(row)] = texts
    return left


def fill_from_old(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry as capture stages it: with the values that only the whole old row has."""
    if not entry["unchanged"]:
        return entry
    values, old = entry["values"], entry["old_values"]
    filled = [old[i] if i in entry["unchanged"] else text for i, text in enumerate(values)]
    return entry | {"values": filled, "unchanged": None}


def make_log(transactions: list[list[dict[str, Any]]], rng: random.Random) -> pa.Table:
    """The entries of transactions in any order, some of them twice."""
    rows = [
        {"epoch": 1, "commit_lsn": 8 * number, "seq": seq, "relation_version": 1} | entry
        for number, entries in enumerate(transactions)
        for seq, entry in enumerate(entries)
    ]
    rows += rng.sample(rows, min(len(rows), 2))
    rng.shuffle(rows)
    return pa.Table.from_pylist(rows, CHANGES_SCHEMA)


@pytest.mark.parametrize(
    "ranges", [400, pytest.param(20_000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("table", make_tables(), ids=lambda table: table.name)
def test_a_fold_by_arrow_leaves_what_the_oracle_leaves(
    table: SourceTable, ranges: int, tmp_path: Path
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rng = random.Random(f"{SEED} {table.name}")
    relation = RecordedLog(LogWriter(Lake(locate_lake(tmp_path))), rng, []).announce(table)
    schema = TableSchema.of(relation)
    columns = find_converts(schema)
    assert columns is not None
    key, is_whole = list(schema.key), table.identity == "f"
    state: oracle.Rows = {}
    found: Counter[str] = Counter()
    for _ in range(ranges):
        made = [run_transaction(rng, table, keys=20) for _ in range(rng.randrange(1, 4))]
        logged = [[vars(entry) for entry in entries] for entries in made]
        expected = oracle.fold(logged, key, whole=is_whole, state=state)
        names = ("op", "values", "unchanged", "old_values")
        staged = [[{name: entry[name] for name in names} for entry in of] for of in logged]
        if is_whole:
            staged = [[fill_from_old(entry) for entry in of] for of in staged]
        log = make_log(staged, rng)
        outcome = fold_by_arrow(log, columns, schema.key, has_whole_old=is_whole)
        left = None if outcome is None else apply(outcome, state, table.columns, table.keys)
        found["left to Spark" if left is None else "folded"] += 1
        if outcome is not None:
            found["carried"] += bool(outcome.carried)
            found["undecided"] += bool(outcome.undecided.num_rows)
        assert left is None or left == expected
        state = expected
    print(found)  # noqa: T201 - How much of it was rare.
    assert found["folded"] > ranges * 0.2
    assert found["carried"] > ranges / 10 or is_whole


@pytest.mark.parametrize(
    ("limits", "rounds"),
    [
        pytest.param(DEFAULT_LIMITS, 8, id="one file", marks=pytest.mark.soak),
        pytest.param(APART, 5, id="several files"),
        pytest.param(APART, 300, id="soak", marks=[pytest.mark.soak, pytest.mark.timeout(3600)]),
    ],
)
def test_tables_with_rare_keys_are_their_source_s(
    spark: SparkSession, tmp_path: Path, limits: MergeLimits, rounds: int
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    small = SmallLake(spark, tmp_path, limits=limits)
    log = RecordedLog(small.log, random.Random(SEED + rounds), make_tables()[:3])
    ways: Counter[WritePlan] = Counter()
    for number in range(rounds):
        log.record(20 if number == 0 else 3, truncates=0)
        small.log.commit(repeat=number % 3)
        (done,) = small.merge()
        for table in log.tables:
            rows = small.spark.read.format("delta").load(
                str(small.lake.locate(log.announce(table).table))
            )
            assert read_texts(rows, table) == table.truth(), (number, table.name)
            merged = done.tables.get(f"public.{table.name}")
            assert merged is None or merged.rows == len(table.rows)
        if number:
            ways.update(merged.way for merged in done.tables.values())
    print(ways)  # noqa: T201 - How many Arrow could not write.
    assert ways[WritePlan.REWRITE_FILES] > 0.4 * ways.total()
