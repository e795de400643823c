"""The comparison finds every difference, and none where there is none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import load_settings
from cdc_core.source.connection import open_connection
from cdc_core.vocabulary import TableName
from orchestration.demo.comparison import Comparison, compare_table, list_published
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

TABLE = TableName("public", "sample")
TABLES = """
    create type mood as enum ('good', 'bad');
    create table sample (
        id bigint primary key, price numeric(12,2), at timestamptz, local timestamp,
        day date, is_on boolean, raw bytea, doc jsonb, mood mood, code uuid, note text, big text
    );
    alter table sample alter column big set storage external;
"""
ROWS = """
    insert into sample values
    (1, 1.50, '2024-02-29 12:00:00.123456+00', '2024-02-29 12:00:00.1', '2024-02-29', true,
     '\\x00ff', '{"a": [1, null, "x"]}', 'good', gen_random_uuid(), E'tab\\tline\\nend', 'x'),
    (2, 'NaN', 'infinity', '0044-03-15 BC', '-infinity', false, '', 'null', 'bad',
     null, '', repeat('y', 9000)),
    (3, null, '0044-03-15 00:00:00+00 BC', null,
     '20000-01-01', null, null, '"\\\\N"', null, null, E'\\\\N ", '' \\r\\n', null),
    (4, 0, now(), now(), now(), true, '\\x5c4e', '{}', 'good', null, 'Grüße 🎁', '')
"""


@pytest.fixture
def compare(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> Callable[[], Comparison]:
    """Lend a comparison of the sample as it is with the sample as it was merged."""
    database18.execute(TABLES)
    pipeline = make_pipeline(database18)
    for statement in (ROWS, "update sample set price = 2, is_on = not is_on where id = 2"):
        database18.execute(statement)
    pipeline.catch_up()
    lake = Lake(pipeline.lake)
    session = spark.newSession()
    merge_until(session, lake, round_rows=1_000_000)
    settings = load_settings(pipeline.folder / "walgate.toml", {})

    def run() -> Comparison:
        with closing(open_connection(settings.source)) as connection:
            assert list_published(connection, "walgate") == [TABLE]
            return compare_table(connection, session, lake, TABLE, find_bound_at(lake, "latest"))

    return run


def test_values_of_every_kind_are_equal(compare: Callable[[], Comparison]) -> None:
    assert compare() == Comparison(TABLE, 4, 4, 0, 0, None)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        ("update sample set note = note || ' ' where id = 1", (4, 1, 1)),
        ("update sample set note = null where id = 2", (4, 1, 1)),
        ("update sample set at = at + interval '1 microsecond' where id = 4", (4, 1, 1)),
        ("update sample set at = '-infinity' where id = 2", (4, 1, 1)),
        ("delete from sample where id = 3", (3, 0, 1)),
        ("insert into sample (id) values (5)", (5, 1, 0)),
    ],
)
def test_one_difference_is_found(
    database18: Database,
    compare: Callable[[], Comparison],
    damage: str,
    expected: tuple[int, int, int],
) -> None:
    database18.execute(damage)
    found = compare()
    assert (found.source_rows, found.only_in_source, found.only_in_lake) == expected
    assert not found.is_equal


def test_a_value_that_is_not_known_is_a_difference(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute(TABLES)
    # Before the slot: the update below does not send the large value.
    database18.execute("insert into sample (id, big) values (1, repeat('z', 9000))")
    pipeline = make_pipeline(database18)
    database18.execute("update sample set note = 'changed'")
    pipeline.catch_up()
    lake = Lake(pipeline.lake)
    session = spark.newSession()
    merge_until(session, lake, round_rows=1_000_000)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    with closing(open_connection(settings.source)) as connection:
        at = find_bound_at(lake, "latest")
        found = compare_table(connection, session, lake, TABLE, at)
    assert (found.only_in_source, found.only_in_lake) == (1, 1)
