from __future__ import annotations

import math
import random
import struct
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import Column
from spark_jobs.pg_types.built_in import ELEMENTS, OIDS
from spark_jobs.pg_types.types import decode_numeric_modifier, map_type
from tests.postgres_server import Database
from tests.spark.given_back import trim
from tests.spark.types_table import PAGE, replace_table

ARRAYS = {element: array for array, element in ELEMENTS.items()}
BOX_ARRAY = 1020


def numeric_modifier(precision: int, scale: int) -> int:
    return ((precision << 16) | (scale & 0x7FF)) + 4


def make_column(kind: str) -> Column:
    scalar, array, _ = kind.partition("[]")
    name, _, modifiers = scalar.partition("(")
    modifier = -1
    if modifiers:
        precision, _, scale = modifiers.rstrip(")").partition(",")
        modifier = numeric_modifier(int(precision), int(scale or 0))
    oid = ARRAYS.get(OIDS[name], BOX_ARRAY) if array else OIDS[name]
    return Column("c", 1, oid, modifier, kind, False, None, False)


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
    ("oid", "4294967295", 4294967295),
    ("time", "24:00:00", "24:00:00"),
    ("int4[]", "{1,NULL,3}", [1, None, 3]),
    ("int4[]", "{}", []),
    ("int4[]", "{NULL}", [None]),
    ("bool[]", "{t,f,NULL}", [True, False, None]),
    ("float8[]", "{1e+300,-0,Infinity}", [1e300, -0.0, float("inf")]),
    ("numeric(10,2)[]", "{1.50,NULL}", [Decimal("1.50"), None]),
    ("numeric[]", "{1.5,-3}", [Decimal("1.5"), Decimal(-3)]),
    ("date[]", "{2024-02-29,NULL}", [date(2024, 2, 29), None]),
    ("timestamp[]", '{"2024-02-29 23:59:59.9"}', [moment("2024-02-29T23:59:59.9")]),
    ("bytea[]", r'{"\\x00ff5c",NULL,"\\x"}', [bytearray(b"\x00\xff\\"), None, bytearray(b"")]),
    ("text[]", r'{a,"",NULL,"NULL","null","a b","a,b","{x}","\\","\"","\\\""," "}',
     ["a", "", None, "NULL", "null", "a b", "a,b", "{x}", "\\", '"', '\\"', " "]),
    ("text[]", r'{"\\\\\\",ä,"line\nend"}'.replace("\\n", "\n"), ["\\\\\\", "ä", "line\nend"]),
    ("jsonb[]", r'{"{\"a\": [1, null]}","null"}', ['{"a": [1, null]}', "null"]),
    ("int4range[]", '{"[1,5)",empty}', ["[1,5)", "empty"]),
    ("box[]", "{(1,1),(0,0);(2,2),(1,1)}", "{(1,1),(0,0);(2,2),(1,1)}"),
    ("numeric(10,2)", "-12345678.90", Decimal("-12345678.90")),
    ("numeric(3,-2)", "12300", Decimal(12300)),
    ("numeric(2,4)", "0.0012", Decimal("0.0012")),
    ("numeric(38,0)", "9" * 38, Decimal("9" * 38)),
    ("numeric", "12345678901234567890.123456789012345678",
     Decimal("12345678901234567890.123456789012345678")),
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
    ("numeric(10,2)", "1.5"),
    ("numeric(10,2)[]", "{1.50,NaN}"),
    ("int4[]", "{{1,2},{3,4}}"),
    ("int4[]", "[1:1][2:2]={{7}}"),
    ("int4[]", "{1,x}"),
    ("int4[]", "{1,2147483648}"),
    ("int4[]", "{1,,2}"),
    ("int4[]", "{1,2"),
    ("int4[]", "{,}"),
    ("text[]", "{a}b"),
    ("text[]", '{a"b"}'),
    ("text[]", '{"a\ufffeb"}'),
    ("text[]", '{{a,NULL},{"{",b}}'),
    ("date[]", "{2024-01-01,infinity}"),
    ("timestamptz[]", '{"0044-03-15 00:00:00+00 BC"}'),
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


# Typed, but not given back by their value alone: in `_raw` too.
LOSING: list[tuple[str, str, Any]] = [
    ("numeric", "1.50000000000000000000000", Decimal("1.500000000000000000")),
    ("numeric", "-0.10", Decimal("-0.1")),
    ("numeric", "0.0", Decimal(0)),
    ("numeric[]", "{1.5,2.50,NULL}", [Decimal("1.5"), Decimal("2.5"), None]),
    ("int4[]", "[0:1]={7,NULL}", [7, None]),
    ("int4[]", "[-2147483648:-2147483648]={7}", [7]),
    ("text[]", "[2:2]={[0:1]=}", ["[0:1]="]),
]


def read_all(spark: SparkSession, cases: list[tuple[str, str]]) -> list[tuple[Any, bool]]:
    """For each case its value, and whether its text would be kept in `_raw`."""
    rows = spark.createDataFrame(
        [(i, kind, text) for i, (kind, text) in enumerate(cases)], "i int, kind string, t string"
    )
    kinds = sorted({kind for kind, _ in cases})
    columns = []
    for kind in kinds:
        mapping, text = map_type(make_column(kind)), F.col("t")
        value = mapping.parse(text)
        is_raw = F.lit(False) if mapping.is_total else mapping.is_raw(text, value)
        columns.append(F.when(F.col("kind") == kind, F.struct(value, is_raw)))
    found = rows.coalesce(1).select("i", *columns).orderBy("i").collect()
    return [tuple(row[1 + kinds.index(kind)]) for row, (kind, _) in zip(found, cases, strict=True)]


def test_each_type_reads_its_text_exactly(spark: SparkSession) -> None:
    found = read_all(spark, [(kind, text) for kind, text, _ in EXACT])
    expected = [
        (
            value.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
            if kind == "timestamptz"
            else value,
            False,
        )
        for kind, _, value in EXACT
    ]
    assert list(zip(EXACT, found, strict=True)) == list(zip(EXACT, expected, strict=True))


def test_what_a_type_cannot_hold_is_never_bent_to_fit(spark: SparkSession) -> None:
    found = read_all(spark, UNFIT)
    assert [case for case, read in zip(UNFIT, found, strict=True) if read != (None, True)] == []


def test_a_text_that_its_value_would_not_give_back_is_kept_beside_it(spark: SparkSession) -> None:
    found = read_all(spark, [(kind, text) for kind, text, _ in LOSING])
    assert found == [(value, True) for _, _, value in LOSING]


def test_random_arrays_and_numbers_are_given_back_or_kept(
    spark: SparkSession, database18: Database
) -> None:
    rng = random.Random(11)
    letters = [*'"\\{},[]= ', "NULL", "null", "a", "ä", "\n", "\ufffe", "🐘"]
    lists = [
        [
            None if rng.random() < 0.2 else "".join(rng.choices(letters, k=rng.randrange(4)))
            for _ in range(rng.randrange(5))
        ]
        for _ in range(400)
    ]
    numbers = [
        f"{rng.choice(['', '-'])}{rng.randrange(10 ** rng.randrange(1, 24))}"
        f".{rng.randrange(10 ** rng.randrange(1, 22)):0{rng.randrange(1, 22)}}"
        for _ in range(400)
    ]
    with psycopg.connect(database18.dsn) as connection:
        arrays = [write(connection, "text[]", value) for value in lists]
        wide = [write(connection, "numeric", value) for value in numbers]
        narrow = [write(connection, "numeric(33,9)", value) for value in numbers]
    kinds = ["text[]"] * 400 + ["numeric"] * 400 + ["numeric(33,9)"] * 400
    found = read_all(spark, list(zip(kinds, [*arrays, *wide, *narrow], strict=True)))
    for value, text, read in zip(lists, arrays, found[:400], strict=True):
        assert read == ((None, True) if "\ufffe" in text else (value, False))
    for text, (number, is_raw) in zip(wide, found[400:800], strict=True):
        assert is_raw or f"{trim(number):f}" == text
        assert number is None or number == Decimal(text)
    for text, (number, is_raw) in zip(narrow, found[800:], strict=True):
        assert (f"{number:f}", is_raw) == (text, False)
    assert 50 < sum(number is not None for number, _ in found[400:800]) < 400


def write(connection: psycopg.Connection, kind: str, value: Any) -> str:
    """The text that PostgreSQL writes for a value."""
    ((text,),) = connection.execute(f"select format('%%s', %s::{kind})", [value]).fetchall()
    return str(text)


def test_long_texts_are_read_without_a_deep_stack(spark: SparkSession) -> None:
    size = 30_000
    cases = [
        ("bytea", "\\x" + "00ff" * size),
        ("text[]", "{" + ",".join(["a", '"b\\\\\\""'] * size) + "}"),
        ("numeric[]", "{" + ",".join(["1.5", "NULL"] * size) + "}"),
        ("text[]", '{"' + "\\\\ " * size + '"}'),
    ]
    lengths = [len(value) for value, _ in read_all(spark, cases)]
    assert lengths == [2 * size, 2 * size, 2 * size, 1]


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


def test_a_numeric_of_more_decimals_than_a_decimal_has_is_text() -> None:
    assert map_type(make_column("numeric(60,39)")).spark_type == T.StringType()


def test_a_domain_is_what_its_base_type_is() -> None:
    domain = replace(make_column("numeric(10,2)"), type_oid=16400, type_modifier=-1)
    assert map_type(domain).spark_type == T.StringType()
    over = replace(domain, base_oid=OIDS["numeric"], base_modifier=numeric_modifier(10, 2))
    assert map_type(over).spark_type == T.DecimalType(10, 2)


def test_only_types_with_one_text_a_value_identify_rows() -> None:
    inexact = {name for name in OIDS if not map_type(make_column(name)).is_exact}
    assert inexact == {"float4", "float8", "numeric", "date", "timestamp", "timestamptz"}
    assert not any(map_type(make_column(f"{name}[]")).is_exact for name in {*OIDS} - {"box"})


def test_the_built_in_types_are_those_of_the_server(database: Database) -> None:
    found = database.query(
        "select typname::text, oid::bigint, typarray::bigint, typdelim::text from pg_type"
        " where oid < 10000 and typtype in ('b', 'r', 'm') and typcategory <> 'A'"
        " and typarray <> 0"
    )
    assert {name: oid for name, oid, _, _ in found} == OIDS
    assert {array: oid for _, oid, array, delimiter in found if delimiter == ","} == ELEMENTS


def test_the_page_has_the_table_of_types_that_the_code_has() -> None:
    page = PAGE.read_text()
    assert replace_table(page) == page
