"""Reads that are written without a fold leave what the fold of all that was staged leaves."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.fast_path import append_only
from spark_jobs.fast_path.append_only import is_addition
from spark_jobs.fold.plan import TablePlan
from spark_jobs.lake.lake import Lake, open_table, read_losses
from spark_jobs.merge import merge
from spark_jobs.merge.rounds import Round, merge_until
from spark_jobs.target.limits import DEFAULT_LIMITS
from spark_jobs.target.result import WritePlan
from spark_jobs.target.target_table import TargetTable
from tests.lakes import locate_lake, path_of
from tests.spark.log_writer import LogWriter
from tests.spark.oracle import HOLE
from tests.spark.recorded_log import RecordedLog, read_texts
from tests.spark.relations import insert, make_relation, read, sweep, truncate, update
from tests.spark.small_lake import SPARK_ONLY, SmallLake
from tests.spark.source_model import SourceTable, run_transaction

SEED = 20261122
KEYS = 120
ROUND_ROWS = 30
TEXT = "to_json(struct(*))"
T = make_relation("t", "k int4, d date, n numeric")
FAR = "infinity"
YOUNGER = {"missing_value": "7", "has_default": True}
# Even one read is set apart.
SET_APART = replace(DEFAULT_LIMITS, unshared_reads=1)


@dataclass
class Case:
    """Keys that a table holds, that come below a sweep, that come above it; how, and what is left.

    Of held rows between those that come, more than one is many.
    """

    way: str
    left: list[tuple[Any, ...]]
    held: str = ""
    early: str = ""
    read: str = ""


OLD, NEW = "old", "new"
CASES = {
    "between": Case("added", [(1, NEW), (2, OLD), (3, NEW)], held="2", read="13"),
    "same_of_many": Case("among others", [(2, NEW), (3, OLD), (4, NEW)], held="23", read="24"),
    "swept": Case("among others", [(5, NEW)], held="2", read="5"),
    "swept_first": Case("alone", [(5, NEW)], early="3", read="5"),
    "wider": Case("among others", [(2, OLD, 7), (5, NEW, 8)], held="2", read="5"),
}


class Recorder:
    """In which ways unshared reads were written; `newest` has the last way of each table."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.ways: list[str] = []
        self.newest: dict[str, str] = {}
        patch.setattr(merge, "is_addition", self._record)

    def _record(self, plan: TablePlan, base: TargetTable | None, *parts: Any) -> bool:
        found = is_addition(plan, base, *parts)
        way = "among others" if not found else "added" if base else "alone"
        self.ways.append(way)
        self.newest[plan.table.name] = way
        return found


class Backfilling:
    """A backfill of tables that are written to meanwhile, as capture stages it."""

    def __init__(self, folder: Path, seed: int, *, more: Sequence[SourceTable] = ()) -> None:
        self.rng = random.Random(seed)
        self.lake = Lake(locate_lake(folder / "lake"))
        self.writer = LogWriter(self.lake)
        self.writer.begin_epoch(16)
        pair = ["k", "n", "code", "v", "big"]
        self.tables = [
            SourceTable("pair", "d", keys=["k", "code"], columns=pair, key_form="{}.50"),
            *more,
            SourceTable("quiet", "d"),
        ]
        for table in self.tables:
            for _ in range(60):
                run_transaction(self.rng, table, keys=KEYS)
        self.log = RecordedLog(self.writer, self.rng, self.tables[:-1])

    def stage(self, chunks: int) -> None:
        """Read all tables in ranges, not in order, some twice, while two of them change."""
        self.log.record(1, keys=KEYS)
        start, most = self.writer.lsn, KEYS + 40
        ranges = [(most * i // chunks, most * (i + 1) // chunks) for i in range(chunks)]
        # Side by side, so nearly in order.
        ranges.sort(key=lambda bounds: bounds[0] + self.rng.randrange(most // chunks * 2))
        for place, (low, high) in enumerate(ranges):
            for table in self.tables:
                # A part of the first range is read again by another backfill.
                known = range(10) if place == chunks - 2 and table.name != "quiet" else range(0)
                keys = {table.make_key(number) for number in (*range(low, high), *known)}
                relation = self.log.announce(table)
                rows = [row for row in table.rows if row.key in keys]
                texts = [row.texts(table.columns, table.keys) for row in rows]
                self.writer.add([read(relation, *values) for values in texts])
            if self.rng.random() < 0.6:
                self.log.record(1, keys=KEYS, truncates=0.02)
            self.writer.commit(repeat=self.rng.randrange(3))
        for table in self.tables:
            self.writer.add([sweep(self.log.announce(table), start=start)])
        self.writer.commit()

    def frame(self, spark: SparkSession, lake: Lake, table: SourceTable) -> DataFrame:
        path = str(lake.locate(self.log.announce(table).table))
        return spark.read.format("delta").load(path)

    def check(self, spark: SparkSession, lake: Lake, rounds: list[Round]) -> None:
        for table in self.tables:
            found, expected = read_texts(self.frame(spark, lake, table), table), table.truth()
            # Out of a range that was not read yet a row may move into one that was: a large value
            # that it did not bring is not known, which its hole tells.
            for key, texts in found.items():
                for index, text in enumerate(texts):
                    if text == HOLE and key in expected:
                        expected[key][index] = HOLE
            assert found == expected, table.name
            results = [
                r.tables[name] for r in rounds if (name := f"public.{table.name}") in r.tables
            ]
            changed = sum(one.inserted - one.deleted for one in results)
            assert results[-1].rows == changed == len(table.rows), table.name


def test_lone_reads_and_the_changes_among_them_leave_what_the_source_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = Backfilling(tmp_path, SEED)
    staged.stage(chunks=4)
    recorder = Recorder(monkeypatch)
    rounds = merge_until(spark, staged.lake, round_rows=ROUND_ROWS, limits=SET_APART)
    staged.check(spark, staged.lake, rounds)
    # Later ranges meet tables that have rows.
    assert set(recorder.ways) == {"alone", "added", "among others"}, recorder.ways


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(20))
def test_lone_reads_leave_what_the_fold_leaves(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    more = [SourceTable("plain", "d"), SourceTable("whole", "f", deferrable=True)]
    staged = Backfilling(tmp_path / "folded", seed, more=more)
    staged.stage(chunks=8)
    lake = Lake(locate_lake(tmp_path / "apart"))
    shutil.copytree(path_of(staged.lake.root), path_of(lake.root))
    merge_until(spark, staged.lake, round_rows=ROUND_ROWS)
    rounds = merge_until(spark, lake, round_rows=ROUND_ROWS, limits=SET_APART)
    staged.check(spark, lake, rounds)
    for table in staged.tables:
        texts = [
            sorted(row[0] for row in staged.frame(spark, one, table).selectExpr(TEXT).collect())
            for one in (lake, staged.lake)
        ]
        assert texts[0] == texts[1], table.name


def test_reads_that_a_truncate_cut_off_leave_nothing(spark: SparkSession, tmp_path: Path) -> None:
    small = SmallLake(spark, tmp_path, limits=SET_APART)
    day = "2026-01-01"
    small.merge([read(T, "1", day, "1"), read(T, "2", day, "2")], [truncate(T)])
    assert small.rows(T) == []
    small.merge([read(T, "3", day, "3"), truncate(T), insert(T, "4", day, "4")])
    assert small.rows(T, "k") == [(4,)]


def test_a_key_that_is_named_again_is_folded_and_what_is_lost_is_counted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(monkeypatch)
    small = SmallLake(spark, tmp_path, limits=SET_APART)
    small.log.add([read(T, "1", FAR, "NaN"), read(T, "2", "2024-01-01", "1.50")])
    # Two backfills at once; a text that its type does not hold is no number's key.
    small.log.add([read(T, "3", FAR, "1"), read(T, "4", None, "1"), read(T, "x", FAR, None)])
    small.log.add([read(T, "3", None, "2"), update(T, "4", None, "2"), read(T, "y", None, None)])
    small.log.commit(repeat=3)
    (done,) = small.merge()
    first = [(1, FAR, "NaN"), (2, "2024-01-01", "1.50"), (3, None, "2"), (4, None, "2")]
    assert read_known(small) == first
    assert done.tables["public.t"].lossy == read_counts(small) == {"d": 1, "k": 1, "n": 1}
    # Killed before the commit, and after it: the rows and their counts come together.
    added = (5, FAR, "5")
    small.commit([read(T, "5", FAR, "5")])
    interrupt(small, "before_merge_commit")
    assert read_known(small) == first
    assert read_counts(small) == {"d": 1, "k": 1, "n": 1}
    interrupt(small, "after_merge_commit")
    assert read_known(small) == [*first, added]
    assert read_counts(small) == {"d": 2, "k": 1, "n": 1}
    (done,) = small.merge([read(T, "6", "2024-01-01", "6")])
    assert done.tables["public.t"].way is WritePlan.APPEND
    assert done.tables["public.t"].lossy == read_counts(small) == {"d": 2, "k": 1, "n": 1}
    assert read_known(small) == [*first, added, (6, "2024-01-01", "6")]
    assert recorder.ways == ["alone", "added", "added", "added"]


def test_rows_are_added_only_to_a_table_that_has_nothing_of_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(append_only, "_MAX_NEAR", 1)
    made = {name: make_relation(name, "k int4, v text") for name in CASES}
    wider = make_relation("wider", "k int4, v text, plus int4", plus=YOUNGER)
    small = SmallLake(spark, tmp_path, limits=replace(SPARK_ONLY, unshared_reads=1))
    small.merge([read(made[name], key, "old") for name, case in CASES.items() for key in case.held])
    began, _ = small.commit(
        [read(made[name], key, "new") for name, case in CASES.items() for key in case.early],
        [
            read(made[name], key, "new") if name != "wider" else read(wider, key, "new", "8")
            for name, case in CASES.items()
            for key in case.read
        ],
    )
    recorder = Recorder(monkeypatch)
    small.merge([sweep(made[name], start=began + 16) for name in ("swept", "swept_first")])
    assert recorder.newest == {name: case.way for name, case in CASES.items()}
    assert len(recorder.ways) == len(CASES)
    for name, case in CASES.items():
        relation = wider if name == "wider" else made[name]
        assert small.rows(relation) == case.left, name


def interrupt(small: SmallLake, point: str) -> None:
    """Merge, and end at a crash point, as far as this process can."""

    def end_there(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "reach", end_there)
        with pytest.raises(KeyboardInterrupt):
            small.merge()


def read_counts(small: SmallLake) -> dict[str, int] | None:
    delta = open_table(small.lake.locate(T.table))
    assert delta is not None
    return read_losses(delta)


def read_known(small: SmallLake) -> list[tuple[Any, ...]]:
    """Rows whose key is a number, as texts."""
    frame = small.spark.read.format("delta").load(str(small.lake.locate(T.table)))
    texts = [
        f"coalesce(_raw['{name}'], cast({kind} as string))"
        for name, kind in (("d", "d"), ("n", "int(n)"))
    ]
    return sorted(
        tuple(row) for row in frame.where("k is not null").selectExpr("k", *texts).collect()
    )
