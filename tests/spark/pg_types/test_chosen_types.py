"""Types that the settings choose for columns: nothing is lost under them, and none are mixed."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import TableSettings, load_settings
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.target.result import WritePlan
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.spark.given_back import compare
from tests.spark.relations import insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake

# Source type, chosen type, values.
CHOSEN: list[tuple[str, str, list[str]]] = [
    ("numeric", "decimal(12,4)", ["1.5", "1.50", "-0.0001", "0.00001", "NaN", "123456789.1"]),
    ("numeric", "string", ["1" * 200, "1.50", "NaN", "-Infinity"]),
    ("numeric", "bigint", ["12", "12.0", "9223372036854775807", "9223372036854775808", "-1"]),
    ("numeric(10,2)", "decimal(20,2)", ["1.50", "-12345678.90", "NaN"]),
    ("numeric(10,2)", "decimal(20,4)", ["1.50", "1.25", "NaN"]),
    ("numeric(10,2)", "decimal(4,1)", ["1.50", "1.25", "999.90", "1000.00"]),
    ("price", "decimal(9,2)", ["1.5", "2.25", "1.234"]),
    ("int8", "decimal(20,0)", ["9223372036854775807", "-9223372036854775808", "0"]),
    ("int8", "smallint", ["32767", "32768", "-32768"]),
    ("int4", "decimal(12,2)", ["2147483647", "-1", "10"]),
    ("xid8", "decimal(20,0)", ["18446744073709551615", "3"]),
    ("oid", "string", ["4294967295", "0"]),
    ("float4", "double", ["0.1", "3.4028235e+38", "1e-45", "NaN", "-Infinity", "-0"]),
    ("date", "string", ["infinity", "2024-01-01", "0044-03-15 BC"]),
    ("bool", "string", ["t", "f"]),
    ("numeric[]", "array<decimal(9,3)>", ["{1.5,NULL}", "{1.50}", "{1.2345}", "[0:0]={1.5}", "{}"]),
    ("int4[]", "array<string>", ["{1,NULL}", "{{1},{2}}"]),
    ("int4[]", "string", ["{1,NULL}", "{{1},{2}}"]),
]  # fmt: skip


def test_delta_gives_back_the_text_of_every_value_under_a_chosen_type(
    database18: Database, pipeline: Pipeline, spark: SparkSession
) -> None:
    database18.execute("create domain price as numeric")
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _, _) in enumerate(CHOSEN))
    database18.execute(f"create table t (k int primary key, {columns})")
    with psycopg.connect(database18.dsn) as connection:
        for number in range(max(len(values) for _, _, values in CHOSEN)):
            row = [values[number] if number < len(values) else None for _, _, values in CHOSEN]
            marks = ", ".join("%s" for _ in row)
            statement = f"insert into t values ({number}, {marks})"
            connection.execute(statement.encode(), row)
    types = ", ".join(f"c{i} = '{chosen}'" for i, (_, chosen, _) in enumerate(CHOSEN))
    file = pipeline.folder / "walgate.toml"
    file.write_text(f'{file.read_text()}[tables."public.*"]\ntypes = {{ {types} }}\n')
    pipeline.catch_up()
    (done,) = merge_until(spark, Lake.of(load_settings(file, {})), round_rows=1_000_000)
    assert done.halted == {}
    frame = spark.read.format("delta").load(str(pipeline.root / "tables" / "public" / "t"))
    kinds = dict(frame.dtypes)
    assert [kinds[f"c{i}"] for i in range(len(CHOSEN))] == [chosen for _, chosen, _ in CHOSEN]
    held = frame.toArrow().sort_by("k")
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        kinds_of_source = [kind.replace("price", "numeric") for kind, _, _ in CHOSEN]
        assert compare(connection, "t", kinds_of_source, held) == []
    assert done.tables["public.t"].lossy == count_lossy(held)


def count_lossy(held: pa.Table) -> dict[str, int]:
    """How many values stand in `_raw` alone."""
    counts: dict[str, int] = {}
    for row in held.to_pylist():
        for name in dict(row["_raw"] or ()):
            counts[name] = counts.get(name, 0) + (row[name] is None)
    return {name: count for name, count in counts.items() if count}


RULES = {
    "public.*": TableSettings(types={"n": "decimal(12,2)", "i": "decimal(20,0)", "later": "string"})
}
T = make_relation("t", "k int4, n numeric, i int8")
WIDER = make_relation(
    "t",
    "k int4, n numeric, i int8, later numeric",
    later={"missing_value": "7.10", "has_default": True},
)
OTHER = make_relation("other", "k int4, v text")


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake with rules for types."""
    small = SmallLake(spark, tmp_path)
    small.lake = replace(small.lake, rules=RULES)
    return small


def test_a_chosen_type_lasts_and_a_changed_choice_halts_the_table_until_it_is_set_back(
    lake: SmallLake,
) -> None:
    lake.merge([insert(T, "1", "1.50", "1"), insert(T, "2", "NaN", None), insert(OTHER, "1", "a")])
    changes = [update(T, "1", "2.25", "3"), insert(T, "3", "0.125", "4")]
    (done,) = lake.merge(changes, limits=MERGE_ONLY)
    assert done.tables["public.t"].way is WritePlan.MERGE
    lake.merge([insert(WIDER, "4", "4", "4", "8")])
    rows = [
        (1, Decimal("2.25"), Decimal(3), "7.10", None),
        (2, None, None, "7.10", {"n": "NaN"}),
        (3, None, Decimal(4), "7.10", {"n": "0.125"}),
        (4, Decimal(4), Decimal(4), "8", None),
    ]
    shown = ("k", "n", "i", "later", "_raw")
    assert lake.rows(WIDER, *shown) == rows

    # Another type is chosen, then none: the table stands still, the others go on.
    others = ({"n": "string", "i": "decimal(20,0)", "later": "string"}, {"later": "string"})
    for number, types in enumerate(others):
        lake.lake = replace(lake.lake, rules={"public.t": TableSettings(types=types)})
        end = lake.commit([update(WIDER, "4", "5", "5", "9"), insert(OTHER, f"{number + 2}", "b")])
        assert lake.at(WIDER, end[0]).halt is not None, "a reader at live sees the same"
        (done,) = lake.merge()
        wanted = types.get("n", "its own type")
        (halt,) = done.halted.values()
        assert halt.reason == (
            f"`types` gives column n {wanted}, but the table has it as decimal(12,2)"
        )
        assert "set it back to decimal(12,2) in walgate.toml" in halt.fix
        assert lake.rows(WIDER, *shown) == rows
        assert len(lake.rows(OTHER)) == number + 2
    lake.lake = replace(lake.lake, rules=RULES)
    (done,) = lake.merge()
    assert done.halted == {}
    assert lake.rows(WIDER, *shown)[3] == (4, Decimal(5), Decimal(5), "9", None)


def test_a_choice_that_cannot_be_followed_halts_its_table_alone(lake: SmallLake) -> None:
    rules = {
        "public.key": TableSettings(types={"k": "decimal(20,0)"}),
        "public.unfit": TableSettings(types={"d": "bigint"}),
        "public.same": TableSettings(types={"k": "int", "n": "decimal(38,18)", "v": "string"}),
    }
    lake.lake = replace(lake.lake, rules=rules)
    key, unfit = make_relation("key", "k int8"), make_relation("unfit", "k int4, d date")
    same = make_relation("same", "k int4, n numeric, v text")
    (done,) = lake.merge([insert(key, "1"), insert(unfit, "1", None), insert(same, "1", "1", "a")])
    assert {table: halt.reason for table, halt in done.halted.items()} == {
        "public.key": "`types` makes k decimal(20,0), but a key column keeps its own type",
        "public.unfit": "`types` makes d bigint, which does not hold date",
    }
    # What a column is of itself may be chosen, and be chosen no more.
    lake.lake = replace(lake.lake, rules={})
    (done,) = lake.merge([insert(same, "2", "2", "b"), insert(key, "2"), insert(unfit, "2", None)])
    assert done.halted == {}
    assert [len(lake.rows(table)) for table in (key, unfit, same)] == [2, 2, 2]
