from __future__ import annotations

import math
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column
from spark_jobs.types import decode_numeric_modifier, map_type

OIDS = {
    "bool": 16, "bytea": 17, "int8": 20, "int2": 21, "int4": 23, "text": 25, "json": 114,
    "float4": 700, "float8": 701, "bpchar": 1042, "varchar": 1043, "date": 1082,
    "timestamp": 1114, "timestamptz": 1184, "interval": 1186, "numeric": 1700, "uuid": 2950,
    "jsonb": 3802, "int4[]": 1007,
}  # fmt: skip


def numeric_modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def make_column(kind: str) -> Column:
    name, _, modifiers = kind.partition("(")
    modifier = -1
    if modifiers:
        precision, _, scale = modifiers.rstrip(")").partition(",")
        modifier = numeric_modifier(int(precision), int(scale or 0))
    return Column("c", 1, OIDS[name], modifier, kind, False, None, False)


moment = datetime.fromisoformat

EXACT: list[tuple[str, str, Any]] = [
    ("bool", "t", True),
    ("bool", "f", False),
    ("int2", "-32768", -32768),
    ("int4", "2147483647", 2147483647),
    ("int8", "-9223372036854775808", -9223372036854775808),
    ("text", " padded\n", " padded\n"),
    ("text", "", ""),
    ("varchar", "é\u0001", "é\u0001"),
    ("bpchar", "x   ", "x   "),
    ("uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", '{"a" : 1.0}', '{"a" : 1.0}'),
    ("jsonb", '{"a": 1.0}', '{"a": 1.0}'),
    ("bytea", "\\x", bytearray(b"")),
    ("bytea", "\\x00ff5c", bytearray(b"\x00\xff\\")),
    ("interval", "1 mon 2 days 03:04:05", "1 mon 2 days 03:04:05"),
    ("int4[]", "{1,NULL,3}", "{1,NULL,3}"),
    ("numeric(10,2)", "-12345678.90", Decimal("-12345678.90")),
    ("numeric(3,-2)", "12300", Decimal(12300)),
    ("numeric(2,4)", "0.0012", Decimal("0.0012")),
    ("numeric(38,0)", "9" * 38, Decimal("9" * 38)),
    ("numeric", "12345678901234567890.123456789012345678",
     Decimal("12345678901234567890.123456789012345678")),
    ("numeric", "1.50000000000000000000000", Decimal("1.500000000000000000")),
    ("date", "0001-01-01", date(1, 1, 1)),
    ("date", "1582-10-10", date(1582, 10, 10)),
    ("date", "9999-12-31", date(9999, 12, 31)),
    ("timestamp", "2024-02-29 23:59:59.999999", moment("2024-02-29T23:59:59.999999")),
    ("timestamp", "0001-01-01 00:00:00", moment("0001-01-01T00:00:00")),
    ("timestamptz", "1900-01-01 00:00:00.1+00", moment("1900-01-01T00:00:00.1")),
    ("timestamptz", "9999-12-31 23:59:59.999999+00", moment("9999-12-31T23:59:59.999999")),
]  # fmt: skip

UNFIT: list[tuple[str, str]] = [
    ("bool", "true"),
    ("int4", " 12"),
    ("int4", "12 "),
    ("int4", "+12"),
    ("int4", "012"),
    ("int4", "2147483648"),
    ("int8", "9223372036854775808"),
    ("float8", "1.5d"),
    ("float8", "1e400"),
    ("float8", " 1.5"),
    ("float8", "0x1p3"),
    ("float8", "inf"),
    ("bytea", "plain"),
    ("bytea", "\\xabc"),
    ("numeric(10,2)", "NaN"),
    ("numeric(10,2)", "1.234"),
    ("numeric(10,2)", "123456789.00"),
    ("numeric", "Infinity"),
    ("numeric", "-Infinity"),
    ("numeric", "1.1234567890123456789"),
    ("numeric", "1" * 21),
    ("numeric(50,10)", "1" * 40),
    ("date", "infinity"),
    ("date", "-infinity"),
    ("date", "0044-03-15 BC"),
    ("date", "12024-01-01"),
    ("date", "5874897-12-31"),
    ("timestamp", "infinity"),
    ("timestamp", "2024-01-01 24:00:00"),
    ("timestamp", "2024-01-01 00:00:00.1234567"),
    ("timestamp", "0044-03-15 00:00:00 BC"),
    ("timestamptz", "-infinity"),
    ("timestamptz", "2024-01-01 00:00:00"),
    ("timestamptz", "2024-01-01 00:00:00+05:30"),
    ("timestamptz", "0044-03-15 00:00:00+00 BC"),
    ("timestamptz", "294276-12-31 23:59:59+00"),
    ("timestamptz", "2024-01-01 00:00:00+00\n"),
]


def parse_all(spark: SparkSession, cases: list[tuple[str, str]]) -> list[Any]:
    rows = spark.createDataFrame(
        [(i, text) for i, (_, text) in enumerate(cases)], "i int, t string"
    )
    parsed = []
    for i, (kind, _) in enumerate(cases):
        mapping = map_type(make_column(kind))
        value = F.when(F.col("i") == i, mapping.parse(F.col("t")))
        parsed.append(F.max_by(value, F.col("i") == i).alias(f"c{i}"))
    return list(rows.agg(*parsed).collect()[0])


def test_each_type_reads_its_text_exactly(spark: SparkSession) -> None:
    values = parse_all(spark, [(kind, text) for kind, text, _ in EXACT])
    expected = [
        value.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
        if kind == "timestamptz"
        else value
        for kind, _, value in EXACT
    ]
    assert list(zip(EXACT, values, strict=True)) == list(zip(EXACT, expected, strict=True))


def test_what_a_type_cannot_hold_is_never_bent_to_fit(spark: SparkSession) -> None:
    values = parse_all(spark, UNFIT)
    assert [case for case, value in zip(UNFIT, values, strict=True) if value is not None] == []


def test_floats_are_read_bit_for_bit(spark: SparkSession) -> None:
    rng = random.Random(5)
    doubles = [struct.unpack("d", rng.randbytes(8))[0] for _ in range(500)]
    doubles = [d for d in doubles if not math.isnan(d)] + [-0.0, 5e-324, 1.7976931348623157e308]
    singles = [struct.unpack("f", rng.randbytes(4))[0] for _ in range(500)]
    singles = [s for s in singles if math.isfinite(s)]
    texts = [("d", _postgres(d)) for d in doubles] + [("s", f"{s:.9g}") for s in singles]
    texts += [("d", "NaN"), ("d", "Infinity"), ("d", "-Infinity"), ("d", "-0")]
    rows = spark.createDataFrame(
        [(i, kind, text) for i, (kind, text) in enumerate(texts)], "i int, kind string, t string"
    )
    double, single = map_type(make_column("float8")), map_type(make_column("float4"))
    found = (
        rows.select(
            "i", "kind", double.parse(F.col("t")).alias("d"), single.parse(F.col("t")).alias("s")
        )
        .orderBy("i")
        .collect()
    )
    expected = [*doubles, *singles]
    for row, value in zip(found, expected, strict=False):
        read = row["d"] if row["kind"] == "d" else row["s"]
        form = "d" if row["kind"] == "d" else "f"
        assert struct.pack(form, read) == struct.pack(form, value)
    nan, plus, minus, zero = (row["d"] for row in found[-4:])
    assert math.isnan(nan)
    assert (plus, minus) == (float("inf"), float("-inf"))
    assert struct.pack("d", zero) == struct.pack("d", -0.0)


def _postgres(value: float) -> str:
    """The shortest exact text, as Postgres writes it: `1e+30`, `0.1`, `-0`."""
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    text = repr(value)
    return text.removesuffix(".0")


@pytest.mark.parametrize(
    ("precision", "scale", "spark_type"),
    [
        (10, 2, T.DecimalType(10, 2)),
        (38, 38, T.DecimalType(38, 38)),
        (3, -2, T.DecimalType(5, 0)),
        (2, 4, T.DecimalType(4, 4)),
        (50, 10, T.DecimalType(38, 10)),
        (1000, 0, T.DecimalType(38, 0)),
    ],
)
def test_a_numeric_has_room_for_its_precision_and_scale(
    precision: int, scale: int, spark_type: T.DecimalType
) -> None:
    modifier = numeric_modifier(precision, scale)
    assert decode_numeric_modifier(modifier) == (precision, scale)
    assert map_type(make_column(f"numeric({precision},{scale})")).spark_type == spark_type


def test_a_numeric_without_limits_is_a_decimal_of_38_digits() -> None:
    assert decode_numeric_modifier(-1) is None
    assert map_type(make_column("numeric")).spark_type == T.DecimalType(38, 18)


def test_only_types_with_one_text_a_value_identify_rows() -> None:
    exact = {kind for kind in OIDS if map_type(make_column(kind)).is_exact}
    assert exact == set(OIDS) - {"float4", "float8", "numeric", "date", "timestamp", "timestamptz"}
