"""A mode that keeps the rows which the source deleted, for tests of the seam of modes."""

from __future__ import annotations

from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.modes.mode import KeptRows, Mode, Values

_DELETED, _DELETED_AT = "_deleted", "_deleted_at"


def _arrive(_: str) -> Values:
    return {_DELETED_AT: F.lit(None).cast(T.TimestampType())}


def _depart(departure: str | None) -> Values:
    """Give the time of the transaction that deleted the row; none after a sweep or TRUNCATE."""
    return {} if departure is None else {_DELETED_AT: F.col(f"{departure}._committed_at")}


KEEP_DELETED = Mode(
    "keep_deleted",
    fields=(
        T.StructField(_DELETED, T.BooleanType()),
        T.StructField(_DELETED_AT, T.TimestampType()),
    ),
    arrive=_arrive,
    kept=KeptRows(_DELETED, _depart),
)
