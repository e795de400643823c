"""Sweeps: what a backfill did not find in a range that it read, and nothing changed since, is gone.

A range is of keys, both ends inside; a bound of fewer values than the key has is the beginning of
one. Only keys have a range here whose order in Spark is the source's (cdc_core/source/key_order.py
says which): of any other, the log has no sweep of a range.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Lsn, Operation, Position
from spark_jobs.changes import POSITION, write_position
from spark_jobs.shapes import Shape
from spark_jobs.types import map_type


@dataclass(frozen=True, slots=True)
class Sweep:
    """Rows below `start` are gone whose key lies between two; None where there is no bound."""

    start: Position
    low: tuple[str, ...] | None
    high: tuple[str, ...] | None


def find_sweeps(entries: DataFrame) -> tuple[Sweep, ...]:
    """The sweeps among some entries; of those of one range only the newest counts."""
    said = entries.where(F.col("op") == Operation.SWEEP.value).select("detail").collect()
    newest: dict[tuple[tuple[str, ...] | None, tuple[str, ...] | None], Position] = {}
    for row in said:
        detail = json.loads(row["detail"])
        epoch, commit_lsn, seq = detail["start"]
        start = Position(epoch, Lsn(commit_lsn), seq)
        low, high = (None if detail.get(e) is None else tuple(detail[e]) for e in ("low", "high"))
        newest[low, high] = max(start, newest.get((low, high), start))
    whole = newest.get((None, None))
    return tuple(
        Sweep(start, low, high)
        for (low, high), start in newest.items()
        if (low, high) == (None, None) or whole is None or start > whole
    )


def may_hold_older(table: DeltaTable, sweeps: Sequence[Sweep]) -> bool:
    """Whether a table may have a row that is older than a sweep, by its files' statistics.

    A row without a position is older than every sweep. Only another program can have written it.
    """
    if not sweeps:
        return False
    start = max(sweep.start for sweep in sweeps)
    for file in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        if any(file.get(f"null_count._{name}") != 0 for name in POSITION):
            return True
        epoch, lsn = file.get("min._epoch"), file.get("min._commit_lsn")
        if epoch is None or lsn is None or (epoch, lsn) <= (start.epoch, int(start.commit_lsn)):
            return True
    return False


def find_reaching(table: DataFrame, shape: Shape, sweeps: Sequence[Sweep]) -> tuple[Sweep, ...]:
    """Give the sweeps, or none where no row of the table is gone by any of them."""
    if not sweeps:
        return ()
    start = max(sweep.start for sweep in sweeps)
    # In a form that file statistics can answer: after a backfill most files hold nothing older.
    own, lsn = F.col("_epoch"), F.col("_commit_lsn")
    older = (own < start.epoch) | ((own == start.epoch) & (lsn <= int(start.commit_lsn)))
    for name in POSITION:
        older |= F.col(f"_{name}").isNull()
    swept = table.where(older).alias("t").where(is_swept("t", shape, sweeps))
    return tuple(sweeps) if swept.limit(1).count() else ()


def is_swept(rows: str, shape: Shape, sweeps: Sequence[Sweep]) -> Expression:
    """Whether one of the sweeps removes a row of the table; `rows` is the table's alias.

    NULL sorts lowest in a struct, so a row without a position is older than every sweep.
    """
    found = F.lit(False)
    for sweep in sweeps:
        own = F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))
        inside = own < write_position(sweep.start)
        if sweep.low is not None:
            inside &= _compare_key(rows, shape, sweep.low, is_above=True)
        if sweep.high is not None:
            inside &= _compare_key(rows, shape, sweep.high, is_above=False)
        found |= inside
    return found


def _compare_key(rows: str, shape: Shape, bound: tuple[str, ...], *, is_above: bool) -> Expression:
    """Whether the beginning of a row's key lies at or above a bound, or at or below it."""
    own, others = [], []
    for i, text in zip(shape.key, bound, strict=False):
        mapping = map_type(shape.columns[i])
        # The settings may have chosen another type, which may order otherwise.
        own.append(F.col(f"{rows}.`{shape.names[i]}`").cast(mapping.spark_type))
        others.append(mapping.parse(F.lit(text)))
    key = F.struct(*(one.alias(f"k{i}") for i, one in enumerate(own)))
    other = F.struct(*(one.alias(f"k{i}") for i, one in enumerate(others)))
    # In a struct NULL, which a value is that does not fit, is the least.
    is_known = F.lit(True)
    for one in (*own, *others):
        is_known &= one.isNotNull()
    return is_known & (key >= other if is_above else key <= other)
