"""Arrow reads a column of texts to what Spark's expressions read, or not at all."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from cdc_core.layout import CHANGES_SCHEMA
from spark_jobs.pg_types.arrow_rows import ArrowColumn, make_rows
from spark_jobs.pg_types.arrow_texts import Convert, convert_plainly
from spark_jobs.pg_types.built_in import OIDS
from spark_jobs.pg_types.types import TypeMapping, map_type
from tests.spark.pg_types.test_types import EXACT, LOSING, UNFIT, make_column

SEED = 20261122
# Characters. A text with more digits after the point than the type has is left to Spark.
LONGEST = 20
KINDS = [*sorted({*OIDS} - {"numeric"}), "numeric", "numeric(10,2)", "numeric(3,-2)"]
KINDS += ["numeric(38,20)", "numeric(2,4)"]
# What texts of numbers and times are made of, and what is not of theirs.
PIECES = [*"0123456789", "-", ".", "e", "+", ":", " ", "00", "2024-02-2", "23:59:5", "+00"]
PIECES += ["NaN", "Infinity", "inf", "\n", "\\x", "f", "t", "BC", "d", "0x", "\uff11", "_"]


def convert(kind: str, *texts: str | None) -> pa.Array | None:
    mapping = map_type(make_column(kind))
    assert mapping.convert is not None
    return convert_plainly(mapping.convert, pa.array(texts, pa.string()))


def find_way(kind: str) -> tuple[Convert, str | None]:
    mapping = map_type(make_column(kind))
    assert mapping.convert is not None
    return mapping.convert, mapping.kept_form


def make_entries(*rows: list[str | None]) -> pa.RecordBatch:
    entries = pa.Table.from_pylist([{"values": row} for row in rows], CHANGES_SCHEMA)
    (batch,) = entries.to_batches()
    return batch


def as_held(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(value, bytearray) else value


def make_text(rng: random.Random, kind: str) -> str:
    known = [text for one, text, *_ in [*EXACT, *UNFIT, *LOSING] if one == kind]
    text = rng.choice(known) if known and rng.random() < 0.6 else ""
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(PIECES) + text[at + rng.randrange(2) :]
    return text


def test_every_type_but_arrays_has_a_way() -> None:
    without = {kind for kind in KINDS if map_type(make_column(kind)).convert is None}
    assert not without
    assert map_type(make_column("int4[]")).convert is None


@pytest.mark.parametrize(
    ("kind", "text", "value"), [case for case in EXACT if not case[0].endswith("[]")]
)
def test_a_text_that_fits_is_read_exactly(kind: str, text: str, value: Any) -> None:
    found = convert(kind, text, None)
    assert found is not None
    held, nothing = found.to_pylist()
    assert (as_held(held), nothing) == (as_held(value), None)


@pytest.mark.parametrize(
    ("kind", "text"),
    [(kind, text) for kind, text, *_ in UNFIT if not kind.endswith("[]")],
)
def test_one_text_that_does_not_fit_leaves_all_to_spark(kind: str, text: str) -> None:
    fitting = [known for one, known, _ in EXACT if one == kind]
    assert convert(kind, *fitting, text, None) is None


@pytest.mark.parametrize(
    ("kind", "text", "value"), [case for case in LOSING if not case[0].endswith("[]")]
)
def test_a_text_that_its_value_does_not_give_back_is_kept_beside_it_or_left_to_spark(
    kind: str, text: str, value: Any
) -> None:
    column = ArrowColumn("n", *find_way(kind))
    rows = make_rows(make_entries([text], ["1.5"], [text], [None]), [column])
    if len(text) > LONGEST:
        assert rows is None
        return
    assert rows is not None
    assert rows["n"].to_pylist() == [value, Decimal("1.5"), value, None]
    assert rows["_raw"].to_pylist() == [[("n", text)], None, [("n", text)], None]


def test_the_kept_texts_of_a_row_are_in_the_order_of_its_columns() -> None:
    columns = [ArrowColumn(name, *find_way("numeric")) for name in ("b", "a", "c")]
    entries = make_entries(["1.0", "2.0", "3"], ["1", "2", "3"], ["1", None, "3.0"])
    rows = make_rows(entries, columns)
    assert rows is not None
    assert rows["_raw"].to_pylist() == [[("b", "1.0"), ("a", "2.0")], None, [("c", "3.0")]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_without_a_value_has_its_type_too(kind: str) -> None:
    few, none = convert(kind, None, None), convert(kind)
    assert few is not None
    assert none is not None
    assert few.type == none.type
    assert few.null_count == len(few)


def test_texts_of_any_kind_are_read_as_spark_reads_them(spark: SparkSession) -> None:
    rng = random.Random(SEED)
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    read = 0
    for kind in KINDS:
        mapping = map_type(make_column(kind))
        if mapping.is_total:
            continue
        cases = []
        for text in sorted({make_text(rng, kind) for _ in range(1500)}):
            value = convert(kind, text)
            if value is not None:
                cases.append((text, value))
        if cases:
            read += len(cases)
            require_same(spark, kind, mapping, cases)
    assert read > 500


def require_same(
    spark: SparkSession, kind: str, mapping: TypeMapping, cases: list[tuple[str, pa.Array]]
) -> None:
    values = pa.concat_arrays([value for _, value in cases])
    # As bits: -0 is not 0, and NaN is NaN.
    table = pa.table({"text": [text for text, _ in cases], "value": values})
    frame = spark.createDataFrame(table)
    parsed = mapping.parse(F.col("text"))
    same = F.hash(parsed) == F.hash(F.col("value"))
    same &= parsed.eqNullSafe(F.col("value")) & parsed.isNotNull()
    is_kept = F.col("text").rlike(mapping.kept_form) if mapping.kept_form else F.lit(False)
    different = frame.where(~same | (mapping.is_raw(F.col("text"), parsed) != is_kept))
    assert different.select("text").collect() == [], kind


def test_a_moment_is_read_in_utc_whatever_the_zone_of_this_process() -> None:
    found = convert("timestamptz", "2026-07-01 00:00:00+00")
    assert found is not None
    assert found.to_pylist() == [datetime(2026, 7, 1, tzinfo=UTC)]
