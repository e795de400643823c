"""Chunks are read as the stream would send them, whole and in key order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import psycopg
import pytest

from cdc_core.errors import SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source import collations
from cdc_core.source.chunks import ChunkReader, OpenRead
from cdc_core.spooled import Key
from cdc_core.vocabulary import TableName
from tests.postgres_server import Database

Read = Callable[[str], OpenRead]


@pytest.fixture
def read(database: Database) -> Iterator[Read]:
    """Lend an open read of a table by its name; t is published unless the test did so."""
    with ExitStack() as stack:

        def make(name: str = "t") -> OpenRead:
            if not database.query("select from pg_publication where pubname = 'walgate'"):
                database.execute("create publication walgate for all tables")
            reader = ChunkReader(
                SourceSettings(dsn=database.dsn),
                TableName("public", name),
                find_history=lambda: None,
            )
            stack.callback(reader.close)
            stack.enter_context(reader.lock())
            return reader.look()

        yield make


def read_all(opened: OpenRead, size: int) -> list[tuple[str | None, ...]]:
    """All rows, so many at a time, between the boundaries that are found."""
    columns = [column.name for column in opened.relation.columns]
    rows: list[tuple[str | None, ...]] = []
    low: Key | None = None
    while True:
        high = opened.find_boundary(low, None, size)
        values, _ = opened.read_rows(columns, low=low, high=high)
        rows += [tuple(row) for row in values.to_pylist()]
        if high is None:
            return rows
        assert len(values) == size
        low = high


def test_rows_that_come_in_many_pieces_are_whole(database: Database, read: Read) -> None:
    database.execute("create table t (id int primary key, v text)")
    database.execute(
        "insert into t select i, repeat(chr(97 + i % 26), case i when 500 then 1000000"
        " else i * 7919 % 1500 end) from generate_series(1, 3000) i"
    )
    expected = [(str(key), text) for key, text in database.query("select * from t order by id")]
    assert read_all(read("t"), 2999) == expected
    values, is_whole = read("t").read_rows(["id", "v"], low=None, high=None, most_bytes=1_200_000)
    assert not is_whole
    assert [tuple(row) for row in values.to_pylist()] == expected[: len(values)]
    assert values.nbytes > 1_200_000


def test_every_value_comes_as_copy_writes_it(database: Database, read: Read) -> None:
    database.execute(
        "create table t (a text, b int, c bool, d char(5), e bytea, f text, primary key (b, a))"
    )
    texts = ["", "NULL", "\\N", "\\.", '"', '""', ",", "a\nb", "\r\n", " x ", "é\u2028", "'"]
    for number, text in enumerate(texts):
        database.execute(
            "insert into t values (%s, %s, true, 'ab', %s, null)", [text, number % 3, text.encode()]
        )
    expected = database.query(
        "select a, b::text, 't', d || repeat(' ', 5 - length(d)), e::text, null from t"
        ' order by b, a collate "C"'
    )
    for size in (1, 5, len(texts), len(texts) + 1):
        assert sorted(read_all(read("t"), size), key=repr) == sorted(expected, key=repr)


def test_a_row_of_one_empty_text_and_an_empty_table(database: Database, read: Read) -> None:
    database.execute("create table t (a text primary key)")
    assert read_all(read("t"), 10) == []
    database.execute("insert into t values ('')")
    assert read_all(read("t"), 1) == [("",)]
    database.execute("create table n (a int primary key, b text)")
    database.execute("insert into n values (1, null), (2, '')")
    rows, _ = read("n").read_rows(["b"], low=None, high=None)
    assert rows.to_pylist() == [[None], [""]]


def test_keys_of_any_type_bound_their_ranges(database: Database, read: Read) -> None:
    kinds = {
        "numeric": "case i when 7 then 'NaN' when 8 then 'Infinity' else (i / 3.0)::text end",
        "timestamptz": "case i when 0 then '-infinity' when 1 then 'infinity'"
        " else (timestamp '2020-01-01' + i * interval '1 hour')::text end",
        "uuid": "md5(i::text)",
        "date": "(date '1999-01-01' + i)::text",
        "varchar(20)": "chr(33 + i) || 'é'",
        "char(5)": "'a' || i",
        "bytea": "'\\x0' || (i % 10) || to_hex(16 + i)",
        "float8": "case i when 3 then 'NaN' when 4 then '-0' else (i * 0.1)::text end",
        "bool": "(i = 0)::text",
    }
    for number, (kind, text) in enumerate(kinds.items()):
        name, rows = f"k{number}", 2 if kind == "bool" else 23
        database.execute(f"create table {name} (k {kind}, i int, primary key (k, i))")
        database.execute(
            f"insert into {name} select ({text})::{kind}, i from generate_series(0, {rows - 1}) i"
        )
        got = read_all(read(name), 5)
        assert [row[1] for row in got] == [
            str(i) for (i,) in database.query(f"select i from {name} order by k, i")
        ], kind


def test_the_relation_is_the_one_the_stream_would_announce(database: Database, read: Read) -> None:
    database.execute(
        "create table t (a int, b text not null, c int generated always as (1) stored)"
    )
    database.execute("alter table t add primary key (b, a)")
    opened = read("t")
    assert opened.key == ("b", "a")
    assert [(column.name, column.in_identity) for column in opened.relation.columns] == [
        ("a", True),
        ("b", True),
    ]
    database.execute("create table f (a int primary key, b text)")
    database.execute("alter table f replica identity full")
    assert all(column.in_identity for column in read("f").relation.columns)


def test_only_what_is_published_is_read(database: Database, read: Read) -> None:
    database.execute("create table t (a int primary key, b text, secret text)")
    database.execute("insert into t select i, i::text, 's' from generate_series(1, 9) i")
    database.execute("create publication walgate for table t (a, b) where (a > 4)")
    opened = read("t")
    assert [column.name for column in opened.relation.columns] == ["a", "b"]
    assert read_all(opened, 2) == [(str(i), str(i)) for i in range(5, 10)]


def test_children_are_not_the_table_and_partitions_are(database: Database, read: Read) -> None:
    database.execute("create table t (a int primary key)")
    database.execute("create table child () inherits (t)")
    database.execute("insert into t values (1)")
    database.execute("insert into child values (2)")
    database.execute("create table p (a int primary key) partition by range (a)")
    database.execute("create table p1 partition of p for values from (0) to (10)")
    database.execute("create table p2 partition of p for values from (10) to (20)")
    database.execute("insert into p values (15), (5), (11)")
    database.execute(
        "create publication walgate for table only t, table p"
        " with (publish_via_partition_root = true)"
    )
    assert read_all(read("t"), 5) == [("1",)]
    assert read_all(read("p"), 2) == [("5",), ("11",), ("15",)]


def test_the_lock_comes_before_the_snapshot(database: Database) -> None:
    """History 4: a rewrite between snapshot and read would make the read empty."""
    database.execute("create table t (a int primary key)")
    database.execute("insert into t select generate_series(1, 1000)")
    database.execute("create publication walgate for all tables")
    reader = ChunkReader(
        SourceSettings(dsn=database.dsn), TableName("public", "t"), find_history=lambda: None
    )
    with reader.lock():
        with psycopg.connect(database.dsn) as other:
            other.execute("set lock_timeout = '100ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("alter table t alter a type bigint")
        database.execute("insert into t values (1001)")
        opened = reader.look()
        database.execute("insert into t values (1002)")
        assert len(opened.read_rows(["a"], low=None, high=None)[0]) == 1001
    reader.close()


def test_a_table_that_is_not_published_is_refused(database: Database, read: Read) -> None:
    database.execute("create table t (a int primary key)")
    database.execute("create publication walgate")
    with pytest.raises(SourceError, match=r"public\.t is not in publication walgate") as caught:
        read("t")
    assert "walgate publish" in caught.value.fix


def test_rows_of_many_pieces_come_whole_and_end_where_they_are_too_many(
    database18: Database,
) -> None:
    database18.execute("create table t (a text primary key, b text)")
    database18.execute(
        "insert into t select lpad(i::text, 6, '0'), repeat('x', 193)"
        " from generate_series(1, 3000) i"
    )
    database18.execute("create publication walgate for all tables")
    reader = ChunkReader(
        SourceSettings(dsn=database18.dsn), TableName("public", "t"), find_history=lambda: None
    )
    row_bytes = 6 + 1 + 193 + 1
    with reader.lock():
        opened = reader.look()
        for most, count in (
            (None, 3000),
            (3000 * row_bytes + 1, 3000),
            (1500 * row_bytes, 1500),
            (1500 * row_bytes - 1, 1500),
            (1500 * row_bytes + 1, 1501),
            (1, 1),
        ):
            rows, is_whole = opened.read_rows(["a", "b"], low=None, high=None, most_bytes=most)
            assert rows.to_pylist() == [[f"{n + 1:06}", "x" * 193] for n in range(count)]
            assert is_whole == (count == 3000)
            assert most is None or count == 1 or rows.num_chunks > 1
    reader.close()


SHADOWED = """
    create schema shadow;
    create function shadow.pg_collation_actual_version(oid) returns text
    language sql as $$ select '{version}' $$;
    create function shadow.pg_database_collation_actual_version(oid) returns text
    language sql as $$ select '{version}' $$;
    alter database "{name}" set search_path = shadow, pg_catalog, public
"""


@pytest.mark.parametrize(
    "column",
    [
        pytest.param('k text collate "C"', id="collation"),
        pytest.param("k text", id="database"),
        pytest.param("k name_of", id="domain"),
        pytest.param("k text[]", id="array"),
    ],
)
def test_ranges_are_cut_by_the_version_of_the_collation_too(
    database: Database, read: Read, column: str
) -> None:
    """An upgrade of ICU or of glibc gives the same texts another order."""
    database.execute(f"create domain name_of as text; create table t ({column} primary key)")
    before = read("t").by
    assert read("t").by == before
    database.execute(SHADOWED.format(name=database.name, version="later.1"))
    (after,) = read("t").by
    assert (after,) != before
    assert "later.1" in after


def test_only_a_key_with_a_collation_is_cut_by_one(database: Database, read: Read) -> None:
    database.execute(
        "create table t (a int, b uuid, c timestamptz, v text, primary key (b, c, a));"
        ' create table u (a int, k text collate "C", primary key (a, k))'
    )
    assert read("t").by == ("b uuid", "c timestamp with time zone", "a integer")
    first, second = read("u").by
    assert first == "a integer"
    assert second.startswith('k text collate "C"')


def test_the_order_of_a_database_is_read_before_its_server_reports_a_version(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = 100
    monkeypatch.setattr(collations, "_REPORTED_SINCE", 99)
    with psycopg.connect(database.dsn) as connection:
        described = collations.describe_collations(connection, {default})
    assert described[default].startswith('collate "default" (100, C')
