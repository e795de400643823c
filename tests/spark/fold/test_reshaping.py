"""Values of rows that are given another table schema go through PostgreSQL's own texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName
from spark_jobs.fold.reshaping import reshape_rows
from spark_jobs.fold.rows import type_values
from spark_jobs.pg_types.built_in import ELEMENTS, OIDS
from spark_jobs.schema.evolution import TableSchema

AT = datetime(2026, 1, 1, tzinfo=UTC)
SHAPE = (
    "values array<string>, epoch int, commit_lsn bigint, seq bigint, committed_at timestamp,"
    " _id0 string"
)


def limit(precision: int, scale: int) -> int:
    """The type modifier of numeric(precision, scale)."""
    return (precision << 16 | scale) + 4


def make_column(
    name: str, kind: str, modifier: int = -1, *, number: int, key: int | None
) -> Column:
    oid = OIDS[kind.removesuffix("[]")]
    if kind.endswith("[]"):
        oid = next(array for array, element in ELEMENTS.items() if element == oid)
    return Column(name, number, oid, modifier, kind, False, key, key is not None)


def make_schema(*columns: tuple[str, str, int], keys: tuple[str, ...] = ("k",)) -> TableSchema:
    """The schema of a table with columns of `(name, type, modifier)`."""
    made = [
        make_column(name, kind, modifier, number=i + 1, key=_place(name, keys))
        for i, (name, kind, modifier) in enumerate(columns)
    ]
    relation = Relation(1, TableName("public", "t"), ReplicaIdentity.DEFAULT, tuple(made))
    return TableSchema.of(relation)


def _place(name: str, keys: tuple[str, ...]) -> int | None:
    return keys.index(name) + 1 if name in keys else None


def reshape(
    spark: SparkSession, old: TableSchema, new: TableSchema, *texts: Sequence[str | None]
) -> list[Row] | None:
    """Rows of some texts, in another schema."""
    rows = [([*row], 1, 8, n, AT, None) for n, row in enumerate(texts)]
    typed, columns = type_values(spark.createDataFrame(rows, SHAPE), old)
    reshaped = reshape_rows(typed.select(*columns), old, new)
    return None if reshaped is None else reshaped.orderBy("_seq").collect()


K = ("k", "int4", -1)
NUMBERS: list[tuple[Any, ...]] = [
    (("numeric", limit(10, 2)), "1.50", ("numeric", limit(12, 4)), Decimal("1.5000"), None),
    (("numeric", limit(10, 2)), "1.25", ("numeric", limit(10, 1)), None, "1.25"),
    (("int4", -1), "5", ("numeric", limit(10, 2)), Decimal("5.00"), None),
    (("numeric", limit(10, 2)), "5.00", ("int4", -1), 5, None),
    (("numeric", limit(10, 2)), "5.50", ("int4", -1), None, "5.50"),
    (("numeric", limit(10, 2)), "7.50", ("numeric", -1), Decimal("7.5"), "7.50"),
    (("numeric", -1), "NaN", ("numeric", limit(10, 2)), None, "NaN"),
    (("int8", -1), "3000000000", ("int4", -1), None, "3000000000"),
    (("float8", -1), "12345678.5", ("numeric", -1), Decimal("12345678.5"), None),
    (("float8", -1), "1e+20", ("numeric", -1), None, "1e+20"),
    (("text", -1), " 5", ("int4", -1), None, " 5"),
    (("float8[]", -1), "{1.5,NULL,-0.25}", ("numeric[]", -1), [1.5, None, -0.25], None),
    (("float4[]", -1), "{1.5,Infinity}", ("float8[]", -1), [1.5, float("inf")], None),
    (("int4[]", -1), "{1,2}", ("text[]", -1), ["1", "2"], None),
]


@pytest.mark.parametrize(("old", "text", "new", "value", "raw"), NUMBERS)
def test_a_value_is_the_same_in_another_type_or_is_kept_as_its_text(
    spark: SparkSession, old: tuple[str, int], text: str, new: tuple[str, int], value: Any, raw: Any
) -> None:
    found = reshape(spark, make_schema(K, ("v", *old)), make_schema(K, ("v", *new)), ["1", text])
    assert found is not None
    (row,) = found
    assert row["v"] == value
    assert row["_raw"] == (None if raw is None else {"v": raw})


FLOATS = {
    "float8": [
        "0", "-0", "1", "-1.5", "12345678.5", "100000000000000", "123456789012345", "1e+15",
        "1.25e+20", "0.0001", "0.00012", "1e-05", "1.5e-300", "1e+300", "NaN", "-Infinity",
    ],
    "float4": ["0", "1.5", "999999", "1e+06", "1.234567e+06", "0.0001", "1e-05", "1.6777216e+07"],
}  # fmt: skip


@pytest.mark.parametrize("kind", FLOATS)
def test_floats_are_written_as_postgresql_writes_them(spark: SparkSession, kind: str) -> None:
    texts = FLOATS[kind]
    old = make_schema(K, ("v", kind, -1), ("a", f"{kind}[]", -1))
    new = make_schema(K, ("v", "text", -1), ("a", "text", -1))
    rows = [[str(n), text, f"{{{text},NULL}}"] for n, text in enumerate(texts)]
    found = reshape(spark, old, new, *rows)
    assert found is not None
    assert [row["v"] for row in found] == texts
    assert [row["a"] for row in found] == [f"{{{text},NULL}}" for text in texts]


def test_a_key_may_change_its_type_and_its_order(spark: SparkSession) -> None:
    old, new = make_schema(K, ("v", "text", -1)), make_schema(("k", "int8", -1), ("v", "text", -1))
    found = reshape(spark, old, new, ["1", "a"], ["2", "b"])
    assert found is not None
    assert [row["k"] for row in found] == [1, 2]
    old = make_schema(("k", "varchar", 14), ("v", "text", -1))
    new = make_schema(("k", "varchar", 24), ("v", "text", -1))
    assert reshape(spark, old, new, ["a", "b"]) is not None
    columns = [K, ("j", "int4", -1)]
    old = make_schema(*columns, keys=("k", "j"))
    found = reshape(spark, old, make_schema(*columns, keys=("j", "k")), ["1", "2"])
    assert found is not None
    assert [(row["k"], row["j"]) for row in found] == [(1, 2)]
    assert reshape(spark, old, make_schema(*columns, keys=("k",)), ["1", "2"]) is None


def test_the_text_of_a_key_is_that_of_its_new_type(spark: SparkSession) -> None:
    old = make_schema(("k", "numeric", limit(10, 2)))
    new = make_schema(("k", "numeric", limit(12, 4)))
    found = reshape(spark, old, new, ["1.50"])
    assert found is not None
    assert [row["_key"] for row in found] == ['["1.5000"]']
    found = reshape(spark, old, make_schema(("k", "int4", -1)), ["2.00"])
    assert found is not None
    assert "_key" not in found[0]
    assert [row["k"] for row in found] == [2]


def test_a_column_whose_attnum_was_not_known_is_known_by_its_name(spark: SparkSession) -> None:
    new = make_schema(K, ("v", "text", -1))
    unknown = replace(new.columns[1], attnum=None)
    old = replace(new, columns=(new.columns[0], unknown))
    found = reshape(spark, old, new, ["1", "a"])
    assert found is not None
    assert [row["v"] for row in found] == ["a"]


def test_rows_keep_their_positions(spark: SparkSession) -> None:
    schema = make_schema(K, ("v", "text", -1))
    found = reshape(spark, schema, schema, ["1", "a"])
    assert found is not None
    assert found[0]["_commit_lsn"] == 8
