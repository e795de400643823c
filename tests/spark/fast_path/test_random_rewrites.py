"""Random changes of tables by Arrow and by Spark: the same rows, and the same counts of each round.

The tables are one file that grows, with at most a small one beside it, or several files over which
their keys are spread.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.vocabulary import Relation
from spark_jobs.merge.rounds import Round
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.result import WritePlan
from tests.spark.plain_rows import PLAIN, make_row, read_json
from tests.spark.relations import Entry, delete, insert, make_relation, read, update
from tests.spark.small_lake import IN_TASKS, SmallLake
from tests.spark.table_files import APART, list_files, read_each_file_apart, require_nothing_left

SEED = 20261123
WHOLE = replace(PLAIN, table=replace(PLAIN.table, name="whole"), identity=PLAIN.identity.FULL)
PAIR = make_relation("pair", "k int4, t text, b bool, x bytea, v text", key="x b t")
RELATIONS = (PLAIN, WHOLE, PAIR)


class History:
    """Random changes of tables, whose rows are those of a source; every value is sent."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rows: dict[str, dict[tuple[str, ...], list[str | None]]] = {
            str(relation.table): {} for relation in RELATIONS
        }

    def make(self, relation: Relation) -> list[str | None]:
        rng = self.rng
        if relation is not PAIR:
            return make_row(rng, rng.randrange(40))
        # Keys of few values, in another order than the columns.
        x, b, t = "\\x" + rng.choice(["", "00", "ff"]), rng.choice("tf"), rng.choice(["", "a", "é"])
        return [rng.choice([None, "1", "-7"]), t, b, x, rng.choice([None, "v", "w" * 50])]

    def change(self, relation: Relation) -> list[Entry]:
        """One transaction, in which a key that came does not go again."""
        rows, key = self.rows[str(relation.table)], relation.key
        entries: list[Entry] = []
        came: set[tuple[str, ...]] = set()
        for _ in range(self.rng.randint(1, 8)):
            new = self.make(relation)
            own = tuple(str(new[i]) for i in key)
            old = rows.get(own)
            whole = relation.identity is relation.identity.FULL
            if old is None:
                entries.append(insert(relation, *new))
                came.add(own)
            elif self.rng.random() < 0.3 and own not in came:
                sent = old if whole else [t if i in key else None for i, t in enumerate(old)]
                entries.append(delete(relation, *sent))
                del rows[own]
                continue
            elif self.rng.random() < 0.2:
                entries.append(read(relation, *new))
            else:
                entries.append(update(relation, *new, old=old if whole else None))
            rows[own] = new
        return entries


def tell(done: Round) -> dict[str, Any]:
    return {
        table: replace(merged, seconds=0, way=WritePlan.NOTHING, refusal=None)
        for table, merged in done.tables.items()
    }


@dataclass
class Played:
    """What the rounds said of their merges, which ways they went, and what they left."""

    said: list[dict[str, Any]] = field(default_factory=list)
    ways: Counter[WritePlan] = field(default_factory=Counter)
    most_files: dict[str, int] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)


def play(small: SmallLake, history: History, *, rounds: int, transactions: int) -> Played:
    """Merge the same random changes of all tables in rounds of some transactions."""
    played = Played()
    # The first rows are Spark's in any case.
    small.merge([entry for relation in RELATIONS for entry in history.change(relation)])
    for number in range(rounds):
        for _ in range(transactions):
            for relation in RELATIONS:
                small.log.add(history.change(relation))
            # In any order, and some of it twice.
            history.rng.shuffle(small.log.pending)
            small.log.commit(repeat=history.rng.randrange(4))
        if number == 1:
            small.log.begin_epoch(8)
            small.commit(history.change(PAIR))
        (done,) = small.merge()
        played.said.append(tell(done))
        played.ways.update(merged.way for merged in done.tables.values())
        for relation in RELATIONS:
            table, files = str(relation.table), len(list_files(small, relation))
            played.most_files[table] = max(played.most_files.get(table, 0), files)
    played.rows = [read_json(small, relation) for relation in RELATIONS]
    for relation, rows in zip(RELATIONS, played.rows, strict=True):
        assert len(rows) == len(history.rows[str(relation.table)])
    return played


@pytest.mark.parametrize(
    ("shared", "limits", "rounds", "transactions"),
    [
        pytest.param(True, DEFAULT_LIMITS, 4, 6, id="shared, in the driver"),
        pytest.param(True, IN_TASKS, 4, 6, id="shared, in tasks"),
        pytest.param(False, IN_TASKS, 4, 6, id="not shared, in tasks", marks=pytest.mark.soak),
        pytest.param(True, APART, 8, 1, id="several files"),
        pytest.param(False, APART, 8, 1, id="several files, not shared", marks=pytest.mark.soak),
    ],
)
def test_random_changes_leave_the_table_that_spark_would_write(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool,  # noqa: FBT001 - Whether files are read once for all tables.
    limits: MergeLimits,
    rounds: int,
    transactions: int,
) -> None:
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    if not shared:
        limits = replace(limits, shared_log_bytes=read_each_file_apart(monkeypatch))
    by_arrow, by_spark = (
        play(
            SmallLake(spark, tmp_path / way, limits=chosen),
            History(SEED + shared),
            rounds=rounds,
            transactions=transactions,
        )
        for way, chosen in (
            ("by Arrow", limits),
            ("by Spark", replace(limits, rewrite_entries=0)),
        )
    )
    require_nothing_left(tmp_path)
    assert by_arrow.ways == {WritePlan.REWRITE_FILES: rounds * len(RELATIONS)}
    assert by_spark.ways.total() == rounds * len(RELATIONS)
    assert WritePlan.REWRITE_FILES not in by_spark.ways
    assert by_arrow.said == by_spark.said
    assert by_arrow.rows == by_spark.rows
    most = by_arrow.most_files.values()
    assert min(most) >= 4 if limits.open_file_bytes == 1 else max(most) <= 2
