"""A part of a table is checked by the server before anything is begun, whatever was written."""

from __future__ import annotations

import pytest

from cdc_core.backfill.request import BackfillRequest, Resolved, resolve
from cdc_core.errors import ConfigurationError
from cdc_core.settings import SourceSettings
from cdc_core.source.chunks import ChunkReader
from cdc_core.spooled import Scope
from cdc_core.vocabulary import TableName
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer


def look(database: Database, scope: Scope, name: str = "t") -> Resolved:
    source = SourceSettings(dsn=database.dsn)
    return resolve(
        BackfillRequest(source, lambda: None, TableName("public", name), 10, lambda _: None, scope)
    )


def read_keys(database: Database, scope: Scope, name: str = "t") -> list[tuple[str, ...]]:
    source = SourceSettings(dsn=database.dsn)
    reader = ChunkReader(source, TableName("public", name), scope, find_history=lambda: None)
    with reader.lock():
        opened = reader.look()
        rows, _ = opened.read_rows(opened.key, low=None, high=None)
    reader.close()
    return [tuple(row) for row in rows.to_pylist()]


@pytest.fixture
def keyed(database18: Database) -> Database:
    """Lend a database with published tables of several keys, t with that of two columns."""
    database18.execute('create table t (a text collate "C", b int, v text, primary key (a, b))')
    database18.execute("insert into t select chr(64 + i / 3), i, 'v' from generate_series(3, 11) i")
    kinds = {
        "i": "bigint",
        "u": "uuid",
        "d": "date",
        "c": 'text collate "C"',
        "n": "numeric",
        "x": "bytea",
        "z": "timestamptz",
    }
    for name, kind in kinds.items():
        database18.execute(f"create table {name} (k {kind} primary key)")
    database18.execute("create publication walgate for all tables")
    return database18


def test_a_range_has_both_its_ends_and_may_name_the_first_columns_alone(keyed: Database) -> None:
    assert read_keys(keyed, Scope(("B",), ("B",))) == [("B", "6"), ("B", "7"), ("B", "8")]
    assert read_keys(keyed, Scope(("A", "5"), ("B", "6"))) == [("A", "5"), ("B", "6")]
    assert read_keys(keyed, Scope(("C", "10"))) == [("C", "10"), ("C", "11")]
    assert read_keys(keyed, Scope(where="b % 4 = 0 -- all")) == [("A", "4"), ("B", "8")]
    resolved = look(keyed, Scope(("A", " 05 "), ("B",)))
    assert (resolved.scope, resolved.unswept) == (Scope(("A", "5"), ("B",)), None)


@pytest.mark.parametrize(
    "where",
    [
        "true) or (true",
        "true]) or (array[true",
        "true; drop table t",
        "true); drop table t; --",
        "b > 1 /*",
        "",
        "b",
        "count(*) > 1",
        "no_such_column = 1",
        "b = 'x'",
        "true, false",
        "true union select",
        "pg_sleep(1)",
    ],
)
def test_what_is_no_condition_is_refused_and_not_run(keyed: Database, where: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"public\.t: `where` is not a valid condition"
    ) as caught:
        look(keyed, Scope(where=where))
    assert len(caught.value.problems) == 1
    assert keyed.query("select count(*) from t") == [(9,)]


def test_every_mistake_in_a_range_is_told_at_once(keyed: Database) -> None:
    with pytest.raises(ConfigurationError) as caught:
        look(keyed, Scope(("A", "x"), ("A", "1", "2"), "nothing"))
    assert caught.value.problems == [
        "public.t: `from` is not of type integer, the type of b",
        "public.t: `to` has 3 values, expected 1 to 2, of the columns a, b",
        'public.t: `where` is not a valid condition: column "nothing" does not exist',
    ]
    with pytest.raises(ConfigurationError, match="`from` lies above `to`"):
        look(keyed, Scope(("B",), ("A", "5")))


@pytest.mark.parametrize(
    ("table", "low", "high", "reason"),
    [
        ("i", "-5", "7", None),
        ("u", "00000000-0000-0000-0000-00000000000a", None, None),
        ("x", "\\x00", "\\xff", None),
        ("c", "Z", "a", None),
        ("d", "2020-01-01", "2020-12-31", None),
        ("d", "2020-01-01", None, "not between two dates"),
        ("d", "-infinity", "2020-12-31", "not between two dates"),
        ("n", "1", "2", "the lake sorts k (numeric) in another order"),
        ("z", "2020-01-01", None, "in another order"),
    ],
)
def test_a_range_is_swept_only_where_its_order_is_that_of_the_lake(
    keyed: Database, table: str, low: str, high: str | None, reason: str | None
) -> None:
    found = look(keyed, Scope((low,), None if high is None else (high,)), table).unswept
    assert (found is None) == (reason is None), found
    assert reason is None or reason in str(found)
    # A condition leaves out rows that are there; of a whole table nothing needs an order.
    assert look(keyed, Scope(where="true"), table).unswept is not None
    assert look(keyed, Scope(), table).unswept is None


def test_history_17_a_range_of_texts_in_a_language_s_order_is_not_swept(
    postgres15: PostgresServer,
) -> None:
    with lend_database(postgres15) as database:
        database.execute('create table l (k text collate "en-x-icu" primary key)')
        database.execute("insert into l values ('a'), ('B'), ('c')")
        database.execute("create publication walgate for all tables")
        assert read_keys(database, Scope(("B",), ("c",)), "l") == [("B",), ("c",)]
        reason = look(database, Scope(("B",), ("c",)), "l").unswept
    assert reason == "the collation of k does not sort by bytes"
