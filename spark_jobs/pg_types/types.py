"""Maps each PostgreSQL type to a Spark type, and reads its texts: exactly, or not at all.

If a type does not certainly hold a text, the value is NULL and `_raw` keeps the whole text. If the
value alone would not give the text back, such as `1.50` of a numeric without scale, the table keeps
both. Spark's casts trim blanks, round decimals and accept suffixes such as `1d`. So each text must
first match the one form that PostgreSQL writes (DateStyle ISO, UTC, extra_float_digits 3,
bytea_output hex). No pattern here repeats a group of open length: Java would overflow its stack.

A domain has the mapping of its base type. An array of a built-in type, except box, is an array of
that type's mapping. All other types, also those of users and extensions, are strings that hold the
PostgreSQL text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.column_types import ColumnType
from cdc_core.vocabulary import Column
from spark_jobs.pg_types.arrow_texts import (
    Convert,
    as_booleans,
    as_bytes,
    as_decimals,
    as_floats,
    as_integers,
    as_matching,
    keep,
)
from spark_jobs.pg_types.built_in import ELEMENTS, OIDS
from spark_jobs.pg_types.text_output import (
    Write,
    write_array,
    write_bits,
    write_bool,
    write_bytes,
    write_float,
    write_moment,
    write_plain,
    write_trimmed,
)

_MAX_PRECISION = 38
_UNCONSTRAINED = T.DecimalType(38, 18)
_SPOKEN = (T.StringType, T.BinaryType, T.TimestampType, T.TimestampNTZType)

_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_MOMENT = _DAY + r" [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?"
_DATE_FORM = rf"\A{_DAY}\z"
_TIMESTAMP_FORM = rf"\A{_MOMENT}\z"
_TIMESTAMPTZ_FORM = rf"\A{_MOMENT}\+00\z"
_FLOAT_FORM = r"\A(-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|NaN|-?Infinity)\z"

# These replace the escapes `\\` and `\"` in an array's text while it is split.
_BACKSLASH, _QUOTE = "\ufffe", "\uffff"


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """How a table stores the values of a PostgreSQL type.

    `parse` reads a text; it gives NULL if the text does not fit. `write` gives the text of a value,
    or the bits of a float. `text` gives the text in both cases. `loses` is true of a text that
    fits, but that its value does not give back; None if every value gives its text back. `is_exact`
    says that each text has its own value, so that the value can identify a row. `raw` describes to
    a reader what `_raw` holds. `convert` does by Arrow what `parse` does, for a whole column whose
    texts all fit; None if Arrow cannot. `kept_form` matches, for Arrow, the texts of which `loses`
    is true.
    """

    spark_type: T.DataType
    parse: Callable[[Expression], Expression]
    is_exact: bool
    is_total: bool = False  # Every text fits, and its value gives it back.
    loses: Callable[[Expression], Expression] | None = None
    raw: str = ""
    write: Write = write_plain
    write_text: Write | None = None
    convert: Convert | None = None
    kept_form: str | None = None

    @property
    def text(self) -> Write:
        """Writes the text of a value, also of a float."""
        return self.write_text or self.write

    @property
    def is_bare(self) -> bool:
        """Whether the text of a value never needs quotes in an array."""
        return not isinstance(self.spark_type, _SPOKEN)

    def is_raw(self, text: Expression, value: Expression) -> Expression:
        """Whether the table must keep a text beside the value that `parse` read from it."""
        unfit = value.isNull() & text.isNotNull()
        return unfit if self.loses is None else unfit | self.loses(text)


def map_type(column: Column, chosen: str | None = None) -> TypeMapping:
    """The mapping of a column's type, or of the type that the settings chose for the column."""
    oid, modifier = column.type_oid, column.type_modifier
    if column.base_oid is not None:
        oid, modifier = column.base_oid, column.base_modifier
    if chosen is None:
        return _map(oid, modifier)
    kind = ColumnType.parse(chosen)
    if not kind.is_array:
        return _map_as(kind, oid, modifier)
    return _array(_map_as(replace(kind, is_array=False), ELEMENTS[oid], modifier))


def settle_type(column: Column, chosen: str | None) -> str | None:
    """The type that the settings chose for a column; None if it is the column's own type."""
    if chosen is None or not ColumnType.parse(chosen).holds(column.base_oid or column.type_oid):
        return chosen
    is_own = map_type(column, chosen).spark_type == map_type(column).spark_type
    return None if is_own else chosen


def describe_types() -> Iterator[tuple[str, str, str]]:
    """List all mappings for a reader: PostgreSQL types, the lake's type, what `_raw` holds."""
    lines: dict[tuple[str, str], list[str]] = {}
    for name, mapping in _MAPPINGS.items():
        lines.setdefault((mapping.spark_type.simpleString(), mapping.raw), []).append(name)
    for (kind, raw), names in lines.items():
        yield ", ".join(names), kind, raw
    yield "numeric(p,s)", "decimal(p,s), p at most 38", "NaN, values of more than 38 digits"
    yield f"numeric(p,s), s above {_MAX_PRECISION}", _STRING.spark_type.simpleString(), ""
    yield "numeric", _UNCONSTRAINED.simpleString(), _UNLIMITED_NUMERIC.raw
    as_text = sorted({*OIDS} - {*_MAPPINGS, "numeric"})
    yield ", ".join(as_text), _STRING.spark_type.simpleString(), ""
    yield "arrays of these types, except box", "array of the element's type", _array(_STRING).raw
    yield "domains", "the type of their base type", "as for the base type"
    yield "enums, composite types, all others and their arrays", "string", ""


def decode_numeric_modifier(type_modifier: int) -> tuple[int, int] | None:
    """Decode precision and scale; None if the numeric is unlimited.

    The scale may be negative, or above the precision.
    """
    if type_modifier < 4:  # noqa: PLR2004 - VARHDRSZ.
        return None
    packed = type_modifier - 4
    return packed >> 16, ((packed & 0x7FF) ^ 0x400) - 0x400


def _map(type_oid: int, type_modifier: int) -> TypeMapping:
    if type_oid in ELEMENTS:
        return _array(_map(ELEMENTS[type_oid], type_modifier))
    if type_oid == OIDS["numeric"]:
        return _map_numeric(type_modifier)
    return _BY_OID.get(type_oid, _STRING)


def _map_as(kind: ColumnType, type_oid: int, type_modifier: int) -> TypeMapping:
    """The mapping that reads the texts of a type as another type, which holds them."""
    match kind.name:
        case "string":
            return _STRING
        case "double":
            return _float(T.DoubleType())
        case "decimal":
            limits = decode_numeric_modifier(type_modifier) if type_oid == OIDS["numeric"] else None
            decimal = T.DecimalType(kind.precision, kind.scale)
            if limits is not None and limits[1] == kind.scale > 0:
                return _closed_decimal(decimal, kind.scale)
            return _open_decimal(decimal)
        case name:
            return _integer(_INTEGERS[name])


def _map_numeric(type_modifier: int) -> TypeMapping:
    decoded = decode_numeric_modifier(type_modifier)
    if decoded is None:
        return _UNLIMITED_NUMERIC
    precision, scale = decoded
    if scale > _MAX_PRECISION:
        return _STRING
    # numeric(3,-2) has five digits; numeric(2,4) is 0.00nn, which decimal(4,4) holds.
    digits = min(max(precision - min(scale, 0), scale), _MAX_PRECISION)
    decimal = T.DecimalType(digits, max(scale, 0))
    return _closed_decimal(decimal, scale)


def _fixed_form(scale: int) -> str:
    """The pattern of a numeric with a scale: exactly as many digits after the point."""
    return rf"\A-?[0-9]+\.[0-9]{{{scale}}}\z" if scale > 0 else r"\A-?[0-9]+\z"


def _closed_decimal(decimal: T.DecimalType, scale: int) -> TypeMapping:
    """A decimal whose texts all have the same number of digits after the point."""
    decimals = rf"\.[0-9]{{{scale}}}" if scale > 0 else ""
    return TypeMapping(
        decimal,
        _decimal(decimal, _fixed_form(scale)),
        False,
        convert=as_decimals(decimal.precision, decimal.scale, decimals=decimals),
    )


def _open_decimal(decimal: T.DecimalType) -> TypeMapping:
    """A decimal of texts with any number of digits after the point; its value drops last zeros."""
    # Spark would round digits beyond the scale, so only zeros may follow it.
    form, ends_in_zeros = (
        rf"\A-?[0-9]+(\.[0-9]{{0,{decimal.scale}}}0*)?\z",
        r"\.[0-9]*0(\z|[,}])",
    )
    return TypeMapping(
        decimal,
        _decimal(decimal, form),
        False,
        loses=lambda text: text.rlike(ends_in_zeros),
        raw="NaN, ±Infinity, values that do not fit; also values whose fraction ends in zeros (the"
        " column has their value, too)",
        write=write_trimmed if decimal.scale else write_plain,
        convert=as_decimals(
            decimal.precision,
            decimal.scale,
            decimals=rf"(\.[0-9]{{0,{decimal.scale}}})?",
        ),
        kept_form=ends_in_zeros,
    )


def _decimal(decimal: T.DecimalType, form: str) -> Callable[[Expression], Expression]:
    return lambda text: _where(text.rlike(form), text.try_cast(decimal))


def _integer(kind: T.DataType) -> TypeMapping:
    def parse(text: Expression) -> Expression:
        value = text.try_cast(kind)
        return _where(value.cast("string") == text, value)

    return TypeMapping(kind, parse, True, convert=as_integers(_ARROW_INTEGERS[kind]))


def _float(kind: T.DataType) -> TypeMapping:
    def parse(text: Expression) -> Expression:
        value = text.try_cast(kind)
        overflows = (F.abs(value) == float("inf")) & ~text.endswith("Infinity")
        return _where(text.rlike(_FLOAT_FORM) & ~overflows, value)

    held = pa.float32() if isinstance(kind, T.FloatType) else pa.float64()
    return TypeMapping(
        kind,
        parse,
        False,
        write=write_bits(kind.simpleString()),
        write_text=write_float(kind.simpleString()),
        convert=as_floats(held, _FLOAT_FORM),
    )


def _array(element: TypeMapping) -> TypeMapping:
    """An array of one dimension. Source: PostgreSQL documentation, section 8.15.6."""

    def parse(text: Expression) -> Expression:
        unbound = F.regexp_replace(text, r"\A\[[-+0-9]+:[-+0-9]+\]=\{", "{")
        plain = F.replace(unbound, F.lit("\\\\"), F.lit(_BACKSLASH))
        plain = F.replace(plain, F.lit('\\"'), F.lit(_QUOTE))
        words = F.regexp_extract_all(plain, F.lit(r'"[^"]*"|[^",{}]+'), F.lit(0))
        values = F.transform(
            words,
            lambda word: F.when(
                word != "NULL",
                element.parse(F.translate(word, f'{_BACKSLASH}{_QUOTE}"', '\\"')),
            ),
        )
        # If the words make up the whole text, the pattern skipped nothing.
        whole = F.concat(F.lit("{"), F.array_join(words, ","), F.lit("}")) == plain
        fits = whole & ~text.contains(_BACKSLASH) & ~text.contains(_QUOTE)
        if not element.is_total:
            known = F.array_size(F.array_compact(values))
            fits &= known == F.array_size(F.array_remove(words, "NULL"))
        return _where(fits, values)

    def loses(text: Expression) -> Expression:
        bounded = text.startswith("[")
        return bounded if element.loses is None else bounded | element.loses(text)

    return TypeMapping(
        T.ArrayType(element.spark_type),
        parse,
        False,
        loses=loses,
        raw="arrays with several dimensions or with an element that does not fit; also arrays with"
        " a lower bound other than 1, or with an element whose fraction ends in zeros (the column"
        " has their value, too)",
        write=write_array(element.write, is_bare=element.is_bare),
        write_text=write_array(element.text, is_bare=element.is_bare),
    )


def _parse_bool(text: Expression) -> Expression:
    return F.when(text == "t", True).when(text == "f", False)


def _parse_bytea(text: Expression) -> Expression:
    is_hex = text.rlike(r"\A\\x[0-9a-f]*\z") & (F.length(text) % 2 == 0)
    return _where(is_hex, F.unhex(F.substring(text, 3, 2**31 - 1)))


def _parse_date(text: Expression) -> Expression:
    return _where(text.rlike(_DATE_FORM), text.try_cast("date"))


def _parse_timestamp(text: Expression) -> Expression:
    return _where(text.rlike(_TIMESTAMP_FORM), text.try_cast("timestamp_ntz"))


def _parse_timestamptz(text: Expression) -> Expression:
    return _where(text.rlike(_TIMESTAMPTZ_FORM), text.try_cast("timestamp"))


def _where(fits: Expression, value: Expression) -> Expression:
    return F.when(fits, value)


_FAR = "±infinity, BC, years above 9999"
_STRING = TypeMapping(T.StringType(), lambda text: text, True, True, convert=keep)
_ARROW_INTEGERS: dict[T.DataType, pa.DataType] = {
    T.ShortType(): pa.int16(),
    T.IntegerType(): pa.int32(),
    T.LongType(): pa.int64(),
}
_UNLIMITED_NUMERIC = _open_decimal(_UNCONSTRAINED)
_INTEGERS = {"smallint": T.ShortType(), "int": T.IntegerType(), "bigint": T.LongType()}
_MAPPINGS = {
    "bool": TypeMapping(T.BooleanType(), _parse_bool, True, write=write_bool, convert=as_booleans),
    "int2": _integer(T.ShortType()),
    "int4": _integer(T.IntegerType()),
    "int8": _integer(T.LongType()),
    "oid": _integer(T.LongType()),
    "float4": _float(T.FloatType()),
    "float8": _float(T.DoubleType()),
    "bytea": TypeMapping(T.BinaryType(), _parse_bytea, True, write=write_bytes, convert=as_bytes),
    "date": TypeMapping(
        T.DateType(), _parse_date, False, raw=_FAR, convert=as_matching(pa.date32(), _DATE_FORM)
    ),
    "timestamp": TypeMapping(
        T.TimestampNTZType(),
        _parse_timestamp,
        False,
        raw=_FAR,
        convert=as_matching(pa.timestamp("us"), _TIMESTAMP_FORM),
    ),
    "timestamptz": TypeMapping(
        T.TimestampType(),
        _parse_timestamptz,
        False,
        raw=_FAR,
        write=write_moment,
        convert=as_matching(pa.timestamp("us", tz="UTC"), _TIMESTAMPTZ_FORM),
    ),
}
_BY_OID = {OIDS[name]: mapping for name, mapping in _MAPPINGS.items()}
