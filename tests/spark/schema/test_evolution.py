from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName
from spark_jobs.schema.evolution import METADATA_KEY, Halt, TableSchema, accept_first, evolve


def make(name: str, attnum: int | None, **more: Any) -> Column:
    key = more.pop("key", None)
    return Column(
        name,
        attnum,
        more.pop("oid", 23),
        more.pop("modifier", -1),
        "integer",
        False,
        key,
        key is not None,
        **more,
    )


KEY, PLAIN = make("id", 1, key=1), make("n", 2)
TABLE = Relation(16384, TableName("public", "t"), ReplicaIdentity.DEFAULT, (KEY, PLAIN))
SHAPE = TableSchema.of(TABLE)


def extend(column: Column) -> Relation:
    return replace(TABLE, columns=(KEY, PLAIN, column))


def test_the_same_columns_leave_the_shape_as_it_is() -> None:
    renumbered = replace(TABLE, columns=(KEY, replace(PLAIN, not_null=True, has_default=True)))
    assert evolve(SHAPE, renumbered) == SHAPE


@pytest.mark.parametrize(
    "column", [make("m", 3), make("m", 3, missing_value="7", has_default=True)]
)
def test_a_plain_new_column_follows(column: Column) -> None:
    schema = evolve(SHAPE, replace(TABLE, columns=(KEY, PLAIN, column)))
    assert isinstance(schema, TableSchema)
    assert schema.columns == (KEY, PLAIN, column)


@pytest.mark.parametrize(
    ("relation", "reason"),
    [
        (replace(TABLE, oid=16385), "dropped and made again"),
        (replace(TABLE, columns=(KEY,)), "column n was dropped"),
        (replace(TABLE, columns=(KEY, make("m", 2))), "column n was renamed to m"),
        (replace(TABLE, columns=(KEY, make("n", 3))), "column n was dropped and added again"),
        (replace(TABLE, columns=(KEY, make("n", None))), "column n was renamed or dropped since"),
        (replace(TABLE, columns=(KEY, make("n", 2, oid=20))), "type of column n changed"),
        (replace(TABLE, columns=(KEY, make("n", 2, modifier=9))), "type of column n changed"),
        (replace(TABLE, columns=(KEY, make("n", 2, key=2))), "the key changed to (id, n)"),
        (replace(TABLE, columns=(make("id", 1), PLAIN)), "has no key"),
        (extend(make("m", 3, has_default=True)), "new column m in older rows are unknown"),
        (extend(make("m", 0)), "column m was not published before"),
        (extend(make("m", None)), "new column m was renamed or dropped"),
        (replace(TABLE, columns=(KEY, PLAIN, make("_raw", 3))), "column _raw begins with _"),
        (replace(TABLE, columns=(KEY, PLAIN, make("N", 3))), 'n and "N" differ in case only'),
    ],
)  # fmt: skip
def test_any_other_change_halts_with_its_reason(relation: Relation, reason: str) -> None:
    halt = evolve(SHAPE, relation)
    assert isinstance(halt, Halt)
    assert reason in halt.reason
    assert halt.fix


def test_another_membership_of_a_publication_halts_and_an_unknown_one_does_not() -> None:
    schema = replace(SHAPE, published="p 1.2/3")
    assert evolve(schema, replace(TABLE, published="p 1.2/3")) == schema
    assert evolve(schema, TABLE) == schema
    assert evolve(SHAPE, replace(TABLE, published="p 1.2/3")) == SHAPE
    halt = evolve(schema, replace(TABLE, published="p 1.2/4"))
    assert isinstance(halt, Halt)
    assert "the publication of the table changed" in halt.reason


def test_a_table_without_a_key_is_not_admitted() -> None:
    halt = accept_first(replace(TABLE, identity=ReplicaIdentity.FULL, columns=(make("a", 1),)))
    assert isinstance(halt, Halt)
    assert not halt.curable, "a copy would not help"


@pytest.mark.parametrize(
    ("before", "now", "reason"),
    [
        (None, "a", "n is now hashed, but"),
        ("a", None, "n is no longer hashed"),
        ("a", "b", "n is now hashed with another key"),
        ("a", "a", None),
    ],
)
def test_a_column_never_mixes_hashes_with_values_or_with_hashes_of_another_key(
    before: str | None, now: str | None, reason: str | None
) -> None:
    text = make("n", 2, oid=25)
    schema = TableSchema.of(replace(TABLE, columns=(KEY, replace(text, hashed_by=before))))
    followed = evolve(schema, replace(TABLE, columns=(KEY, replace(text, hashed_by=now))))
    if reason is None:
        assert followed == schema
    else:
        assert isinstance(followed, Halt)
        assert reason in followed.reason
        assert followed.curable


def test_a_column_that_was_left_out_is_no_new_one_and_one_beside_it_is() -> None:
    without = replace(TABLE, left_out=(3,))
    schema = TableSchema.of(without)
    halt = evolve(schema, replace(without, columns=(KEY, PLAIN, make("secret", 3))))
    assert isinstance(halt, Halt)
    assert "secret is no longer excluded" in halt.reason
    assert halt.curable
    # It was left out after the table's first announcement, which the log remembers.
    assert evolve(SHAPE, replace(without, columns=(KEY, PLAIN, make("secret", 3)))) == halt
    assert isinstance(
        evolve(schema, replace(without, columns=(KEY, PLAIN, make("m", 4)))), TableSchema
    )
    # Of a column whose number was not known any new one may be the heir.
    doubted = evolve(SHAPE, replace(TABLE, columns=(KEY, PLAIN, make("m", 4)), left_out=(0,)))
    assert isinstance(doubted, Halt)


def test_a_column_that_is_excluded_now_halts_the_table() -> None:
    halt = evolve(SHAPE, replace(TABLE, columns=(KEY,), left_out=(2,)))
    assert isinstance(halt, Halt)
    assert halt.reason == "column n is now excluded, but older rows have its values"
    assert halt.curable


def test_a_shape_is_read_back_from_the_metadata_of_its_columns() -> None:
    columns = (
        make("b", 2, key=2),
        make("odd name", 3, oid=1700, modifier=655366),
        make("a", 1, key=1, hashed_by="mark"),
    )
    schema = TableSchema.of(replace(TABLE, columns=columns, left_out=(4, 5)))
    described = [schema.describe_column(i) for i in range(3)]
    read = TableSchema.from_metadata([*described, schema.describe_table(), {}])
    assert read.key == schema.key == (2, 0)
    assert evolve(read, replace(TABLE, columns=columns, left_out=(4, 5))) == read
    assert read.left_out == (4, 5)
    assert METADATA_KEY in schema.describe_column(0)
