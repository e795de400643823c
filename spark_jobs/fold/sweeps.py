"""Sweeps: remove the rows that a backfill did not find in its range and that did not change since.

A range is of keys, and includes both ends. A range bound with fewer values than the key bounds the
key's first columns. The log has a sweep of a range only if Spark sorts the range's keys as the
source does (`cdc_core/source/key_order.py` decides this).
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
from spark_jobs.log.reading import POSITION, LogPoint, find_points, write_position
from spark_jobs.pg_types.types import map_type
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class Sweep:
    """Removes the rows whose position is below `start` and whose key is from `low` to `high`.

    None means that the range has no bound on that side. `at` is the sweep's own place in the log.
    """

    start: Position
    low: tuple[str, ...] | None
    high: tuple[str, ...] | None
    at: LogPoint


def find_sweeps(entries: DataFrame) -> tuple[Sweep, ...]:
    """The sweeps among some entries, in log order."""
    # The log may hold an entry twice.
    found: dict[LogPoint, Sweep] = {}
    for at, row in find_points(entries, Operation.SWEEP, "detail"):
        detail = json.loads(row["detail"])
        epoch, commit_lsn, seq = detail["start"]
        start = Position(epoch, Lsn(commit_lsn), seq)
        low, high = (None if detail.get(e) is None else tuple(detail[e]) for e in ("low", "high"))
        found[at] = Sweep(start, low, high, at)
    return tuple(found[at] for at in sorted(found))


def drop_superseded(sweeps: Sequence[Sweep]) -> tuple[Sweep, ...]:
    """Drop each sweep whose rows a newer sweep of its range, or of the table, also removes."""
    newest: dict[tuple[tuple[str, ...] | None, tuple[str, ...] | None], Sweep] = {}
    for sweep in sweeps:
        known = newest.get((sweep.low, sweep.high))
        if known is None or sweep.start > known.start:
            newest[sweep.low, sweep.high] = sweep
    whole = newest.get((None, None))
    return tuple(
        sweep
        for sweep in newest.values()
        if sweep is whole or whole is None or sweep.start > whole.start
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


def keep_effective_sweeps(
    table: DataFrame, schema: TableSchema, sweeps: Sequence[Sweep]
) -> tuple[Sweep, ...]:
    """Return all the sweeps; none of them if they remove no row of the table."""
    if not sweeps:
        return ()
    start = max(sweep.start for sweep in sweeps)
    # File statistics can answer this form. After a backfill most files have no older row.
    own, lsn = F.col("_epoch"), F.col("_commit_lsn")
    older = (own < start.epoch) | ((own == start.epoch) & (lsn <= int(start.commit_lsn)))
    for name in POSITION:
        older |= F.col(f"_{name}").isNull()
    swept = table.where(older).alias("t").where(is_swept("t", schema, sweeps))
    return tuple(sweeps) if swept.limit(1).count() else ()


def is_swept(rows: str, schema: TableSchema, sweeps: Sequence[Sweep]) -> Expression:
    """Whether one of the sweeps removes a row of the table; `rows` is the table's alias.

    NULL sorts lowest in a struct, so a row without a position is older than every sweep.
    """
    found = F.lit(False)
    for sweep in sweeps:
        own = F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))
        inside = own < write_position(sweep.start)
        if sweep.low is not None:
            inside &= _compare_key(rows, schema, sweep.low, is_above=True)
        if sweep.high is not None:
            inside &= _compare_key(rows, schema, sweep.high, is_above=False)
        found |= inside
    return found


def _compare_key(
    rows: str, schema: TableSchema, bound: tuple[str, ...], *, is_above: bool
) -> Expression:
    """Whether a row's first key columns are at or above a range bound, or at or below it."""
    own, others = [], []
    for i, text in zip(schema.key, bound, strict=False):
        mapping = map_type(schema.columns[i])
        # The settings may have chosen another type, which may sort differently.
        own.append(F.col(f"{rows}.`{schema.names[i]}`").cast(mapping.spark_type))
        others.append(mapping.parse(F.lit(text)))
    key = F.struct(*(one.alias(f"k{i}") for i, one in enumerate(own)))
    other = F.struct(*(one.alias(f"k{i}") for i, one in enumerate(others)))
    # A value that does not fit its type is NULL, and NULL sorts lowest in a struct.
    is_known = F.lit(True)
    for one in (*own, *others):
        is_known &= one.isNotNull()
    return is_known & (key >= other if is_above else key <= other)
