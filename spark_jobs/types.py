"""For each Postgres type the Spark type, and how its text is read: exactly, or not at all.

A text that a type cannot hold for certain gives NULL here and stays whole in `_raw`. Spark's casts
trim blanks, round decimals and take suffixes such as `1d`, so each text is matched first against
the one form that Postgres writes (DateStyle ISO, UTC, extra_float_digits 3, bytea_output hex).
Types not listed are kept as their Postgres text in a string.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column

_BOOL, _BYTEA, _CHAR, _INT8, _INT2, _INT4, _TEXT, _JSON = 16, 17, 18, 20, 21, 23, 25, 114
_FLOAT4, _FLOAT8, _BPCHAR, _VARCHAR, _DATE = 700, 701, 1042, 1043, 1082
_TIMESTAMP, _TIMESTAMPTZ, _NUMERIC, _UUID, _JSONB = 1114, 1184, 1700, 2950, 3802

_MAX_PRECISION = 38
_UNCONSTRAINED = T.DecimalType(38, 18)

_DATE_FORM = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIMESTAMP_FORM = _DATE_FORM + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_FLOAT_FORM = r"(-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|NaN|-?Infinity)"


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """How values of a Postgres type stand in a table.

    `parse` gives NULL where the text does not fit. `is_exact` says that each text has its own typed
    value, so that rows can be identified by it.
    """

    spark_type: T.DataType
    parse: Callable[[Expression], Expression]
    is_exact: bool
    is_total: bool = False  # Every text fits.


def map_type(column: Column) -> TypeMapping:
    """Give the mapping of a column's type."""
    if column.type_oid == _NUMERIC:
        return _map_numeric(column.type_modifier)
    return _MAPPINGS.get(column.type_oid, _STRING)


def decode_numeric_modifier(type_modifier: int) -> tuple[int, int] | None:
    """Give precision and scale, which may be negative or above the precision; None if unlimited."""
    if type_modifier < 4:  # noqa: PLR2004 - VARHDRSZ.
        return None
    packed = type_modifier - 4
    return packed >> 16, ((packed & 0x7FF) ^ 0x400) - 0x400


def _map_numeric(type_modifier: int) -> TypeMapping:
    decoded = decode_numeric_modifier(type_modifier)
    if decoded is None:
        return _decimal(_UNCONSTRAINED)
    precision, scale = decoded
    # numeric(3,-2) has five digits; numeric(2,4) is 0.00nn, which decimal(4,4) holds.
    digits = max(precision - min(scale, 0), scale)
    return _decimal(T.DecimalType(min(digits, _MAX_PRECISION), min(max(scale, 0), _MAX_PRECISION)))


def _decimal(decimal: T.DecimalType) -> TypeMapping:
    # Digits beyond the scale would be rounded: only zeros may stand there.
    form = rf"\A-?[0-9]+(\.[0-9]{{0,{decimal.scale}}}0*)?\z"
    return TypeMapping(
        decimal, lambda text: _where(text.rlike(form), text.try_cast(decimal)), False
    )


def _integer(kind: T.DataType) -> TypeMapping:
    def parse(text: Expression) -> Expression:
        value = text.try_cast(kind)
        return _where(value.cast("string") == text, value)

    return TypeMapping(kind, parse, True)


def _float(kind: T.DataType) -> TypeMapping:
    def parse(text: Expression) -> Expression:
        value = text.try_cast(kind)
        overflows = (F.abs(value) == float("inf")) & ~text.endswith("Infinity")
        return _where(text.rlike(rf"\A{_FLOAT_FORM}\z") & ~overflows, value)

    return TypeMapping(kind, parse, False)


def _parse_bool(text: Expression) -> Expression:
    return F.when(text == "t", True).when(text == "f", False)


def _parse_bytea(text: Expression) -> Expression:
    return _where(text.rlike(r"\A\\x([0-9a-f]{2})*\z"), F.unhex(F.substring(text, 3, 2**31 - 1)))


def _parse_date(text: Expression) -> Expression:
    return _where(text.rlike(rf"\A{_DATE_FORM}\z"), text.try_cast("date"))


def _parse_timestamp(text: Expression) -> Expression:
    return _where(text.rlike(rf"\A{_TIMESTAMP_FORM}\z"), text.try_cast("timestamp_ntz"))


def _parse_timestamptz(text: Expression) -> Expression:
    return _where(text.rlike(rf"\A{_TIMESTAMP_FORM}\+00\z"), text.try_cast("timestamp"))


def _where(fits: Expression, value: Expression) -> Expression:
    return F.when(fits, value)


_STRING = TypeMapping(T.StringType(), lambda text: text, True, True)
_MAPPINGS = {
    _BOOL: TypeMapping(T.BooleanType(), _parse_bool, True),
    _INT2: _integer(T.ShortType()),
    _INT4: _integer(T.IntegerType()),
    _INT8: _integer(T.LongType()),
    _FLOAT4: _float(T.FloatType()),
    _FLOAT8: _float(T.DoubleType()),
    _BYTEA: TypeMapping(T.BinaryType(), _parse_bytea, True),
    _DATE: TypeMapping(T.DateType(), _parse_date, False),
    _TIMESTAMP: TypeMapping(T.TimestampNTZType(), _parse_timestamp, False),
    _TIMESTAMPTZ: TypeMapping(T.TimestampType(), _parse_timestamptz, False),
    **dict.fromkeys((_TEXT, _VARCHAR, _BPCHAR, _CHAR, _UUID, _JSON, _JSONB), _STRING),
}
