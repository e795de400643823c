from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName
from spark_jobs.shapes import METADATA_KEY, Halt, Shape, admit, follow


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
SHAPE = Shape.of(TABLE)


def extend(column: Column) -> Relation:
    return replace(TABLE, columns=(KEY, PLAIN, column))


def test_the_same_columns_leave_the_shape_as_it_is() -> None:
    renumbered = replace(TABLE, columns=(KEY, replace(PLAIN, not_null=True, has_default=True)))
    assert follow(SHAPE, renumbered) == SHAPE


@pytest.mark.parametrize(
    "column", [make("m", 3), make("m", 3, missing_value="7", has_default=True)]
)
def test_a_plain_new_column_follows(column: Column) -> None:
    shape = follow(SHAPE, replace(TABLE, columns=(KEY, PLAIN, column)))
    assert isinstance(shape, Shape)
    assert shape.columns == (KEY, PLAIN, column)


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
        (extend(make("m", 3, has_default=True)), "in new column m is not known"),
        (extend(make("m", 0)), "column m was not published before"),
        (extend(make("m", None)), "new column m was renamed or dropped"),
        (replace(TABLE, columns=(KEY, PLAIN, make("_raw", 3))), "column _raw begins with _"),
        (replace(TABLE, columns=(KEY, PLAIN, make("N", 3))), 'n and "N" differ in case only'),
    ],
)  # fmt: skip
def test_any_other_change_halts_with_its_reason(relation: Relation, reason: str) -> None:
    halt = follow(SHAPE, relation)
    assert isinstance(halt, Halt)
    assert reason in halt.reason
    assert halt.fix


def test_another_membership_of_a_publication_halts_and_an_unknown_one_does_not() -> None:
    shape = replace(SHAPE, published="p 1.2/3")
    assert follow(shape, replace(TABLE, published="p 1.2/3")) == shape
    assert follow(shape, TABLE) == shape
    assert follow(SHAPE, replace(TABLE, published="p 1.2/3")) == SHAPE
    halt = follow(shape, replace(TABLE, published="p 1.2/4"))
    assert isinstance(halt, Halt)
    assert "how the table is published changed" in halt.reason


def test_a_table_without_a_key_is_not_admitted() -> None:
    halt = admit(replace(TABLE, identity=ReplicaIdentity.FULL, columns=(make("a", 1),)))
    assert isinstance(halt, Halt)
    assert not halt.curable, "a copy would not help"


def test_a_shape_is_read_back_from_the_metadata_of_its_columns() -> None:
    columns = (
        make("b", 2, key=2),
        make("odd name", 3, oid=1700, modifier=655366),
        make("a", 1, key=1),
    )
    shape = Shape.of(replace(TABLE, columns=columns))
    described = [shape.describe_column(i) for i in range(3)]
    read = Shape.from_metadata([*described, shape.describe_table(), {}])
    assert read.key == shape.key == (2, 0)
    assert follow(read, replace(TABLE, columns=columns)) == read
    assert METADATA_KEY in shape.describe_column(0)
