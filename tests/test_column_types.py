"""Types that the settings may choose: how they are written, and what each holds."""

from __future__ import annotations

import pytest

from cdc_core.column_types import ColumnType
from spark_jobs.pg_types.built_in import ELEMENTS, OIDS


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("string", "string"),
        ("BIGINT", "bigint"),
        ("decimal(38, 4)", "decimal(38,4)"),
        ("decimal(20)", "decimal(20,0)"),
        ("array< decimal(5,5) >", "array<decimal(5,5)>"),
    ],
)
def test_a_type_is_spelt_as_spark_spells_it(text: str, spelt: str) -> None:
    assert str(ColumnType.parse(text)) == spelt
    assert ColumnType.parse(spelt) == ColumnType.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "text", "float", "timestamp", "variant", "string(3)", "bigint(8)", "array<>"),
        *("array<array<int>>", "decimal", "decimal(0)", "decimal(39,2)", "decimal(4,5)"),
        *("decimal(4,-1)", "decimal(4,2", "string\n;"),
    ],
)
def test_any_other_type_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        ColumnType.parse(text)


def test_each_type_holds_what_gives_back_its_text() -> None:
    whole = {"int2", "int4", "int8", "oid", "xid", "cid", "xid8"}
    for name, held in {
        "string": {*OIDS},
        "bigint": {*whole, "numeric"},
        "smallint": {*whole, "numeric"},
        "decimal(20,0)": {*whole, "numeric"},
        "double": {"float4"},
    }.items():
        assert {kind for kind, oid in OIDS.items() if ColumnType.parse(name).holds(oid)} == held
    assert ColumnType.parse("string").holds(99_999), "what no one knows is text"
    arrays = {oid: array for array, oid in ELEMENTS.items()}
    numbers = {arrays[OIDS[kind]] for kind in ("numeric", *whole)}
    assert {oid for oid in ELEMENTS if ColumnType.parse("array<decimal(9,2)>").holds(oid)} == (
        numbers
    )
    assert not ColumnType.parse("decimal(9,2)").holds(arrays[OIDS["numeric"]])
    assert not ColumnType.parse("array<decimal(9,2)>").holds(OIDS["numeric"])
