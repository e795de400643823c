"""The columns of a history, and which of its versions a reader sees at a bound.

Shape: `_to_lsn`; the columns of `fold/rows.py::table_fields`; and these:
- of the transaction that opened the version, `_from_epoch, _from_lsn` (its end LSN), `_valid_from`
  (its log time) and `_opened_by` (the operation);
- of the one that closed it, `_to_epoch, _valid_to, _closed_by`, NULL in an open version;
- `_is_current`: the version is open;
- `_continues`: the version before it of its key is the same row, so values that the change did not
  send are that version's.
A version is valid from `_from_lsn` on, and before `_to_lsn`.

`_epoch, _commit_lsn, _seq, _committed_at` are the position and the commit time of the change that
opened the version, or of the last read that found it unchanged.
"""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.fold.rows import null_if_empty, select_values, table_fields
from spark_jobs.lake.lake import Bound
from spark_jobs.schema.evolution import TableSchema

OPENING = ("_from_epoch", "_from_lsn", "_valid_from", "_opened_by")
CLOSING = ("_to_epoch", "_to_lsn", "_valid_to", "_closed_by")
# What a version says of the transaction that opened or closed it, in the order of the names above.
MOMENT = ("epoch", "end_lsn", "log_time", "op")
_MOMENT_KINDS = (T.IntegerType(), T.LongType(), T.TimestampType(), T.StringType())
# By its statistics, a merge knows which files have open versions. Delta has statistics only of the
# first 32 columns, so it is the first one.
_END = "_to_lsn"
_END_FIELD = T.StructField(_END, T.LongType())
OWN_FIELDS = (
    *(T.StructField(n, kind) for n, kind in zip(OPENING, _MOMENT_KINDS, strict=True)),
    *(T.StructField(n, kind) for n, kind in zip(CLOSING, _MOMENT_KINDS, strict=True) if n != _END),
    T.StructField("_is_current", T.BooleanType()),
    T.StructField("_continues", T.BooleanType()),
)
# What opened the versions that a history begins with if the log does not reach back. It is no
# operation of the log: no entry says when these versions were opened.
BASE = "base"


def list_fields(schema: TableSchema) -> list[T.StructField]:
    """The columns of a history, with the metadata that hold the table schema."""
    return [_END_FIELD, *table_fields(schema), *OWN_FIELDS]


def is_open() -> Expression:
    """Whether a version is open."""
    return F.col("_to_lsn").isNull()


def select_open(versions: DataFrame, schema: TableSchema) -> DataFrame:
    """The open versions, as rows of the table."""
    values = {field.name: F.col(f"`{field.name}`") for field in table_fields(schema)}
    # No read brings a value of a column that the source has dropped.
    names = F.array(*(F.lit(name) for name in schema.names))
    values["_holes"] = null_if_empty(F.array_intersect("_holes", names))
    return versions.where(is_open()).select(*select_values(values, table_fields(schema)))


def slice_at(versions: DataFrame, at: Bound) -> DataFrame:
    """The versions as they were at a bound: without later ones, and closed only up to there."""
    begins = F.struct("_from_epoch", "_from_lsn")
    ends = F.struct("_to_epoch", "_to_lsn")
    bound = F.struct(F.lit(at.epoch), F.lit(int(at.lsn)).cast("long"))
    is_closed = ~is_open() & (ends <= bound)
    changed = {name: F.when(is_closed, F.col(name)) for name in CLOSING}
    changed["_is_current"] = ~is_closed
    values = {name: changed.get(name, F.col(f"`{name}`")) for name in versions.columns}
    return versions.where(begins <= bound).select(*select_values(values, versions.schema.fields))


def begin_at(rows: DataFrame, schema: TableSchema, moment: Expression) -> DataFrame:
    """Open versions of rows that a table has, from a moment on: a struct of the fields `MOMENT`."""
    values = {field.name: F.col(f"`{field.name}`") for field in table_fields(schema)}
    values |= name_moment(OPENING, moment) | name_moment(CLOSING, None)
    values |= {"_is_current": F.lit(True), "_continues": F.lit(False)}
    return rows.select(*select_values(values, list_fields(schema)))


def name_moment(names: tuple[str, ...], moment: Expression | None) -> dict[str, Expression]:
    """The columns of a moment by name: `OPENING` or `CLOSING`. NULLs without a moment."""
    pairs = zip(names, MOMENT, _MOMENT_KINDS, strict=True)
    return {
        name: F.lit(None).cast(kind) if moment is None else moment[field].cast(kind)
        for name, field, kind in pairs
    }
