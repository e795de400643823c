"""What the stream does not say of a relation, on both servers, and while the catalog moves on."""

from __future__ import annotations

from dataclasses import replace

import psycopg
import pytest

from cdc_core.source.catalog import complete_relation
from cdc_core.vocabulary import Relation
from tests.fix_catalog import Announce, column
from tests.postgres_server import Database


def key_names(relation: Relation) -> list[str]:
    """Give the columns of the key, in key order."""
    return [relation.columns[index].name for index in relation.key]


def test_the_catalog_adds_numbers_names_nullness_and_the_order_of_the_key(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute(
        "create table t (gone int, a int, n numeric(18,4), b text, primary key (b, a))"
    )
    database.execute("alter table t drop column gone")
    relation = complete_relation(connection, announce(), previous=None)
    shown = [(c.name, c.attnum, c.type_name, c.not_null, c.key_ordinal) for c in relation.columns]
    assert shown == [
        ("a", 2, "integer", True, 2),
        ("n", 3, "numeric(18,4)", False, None),
        ("b", 4, "text", True, 1),
    ]
    assert key_names(relation) == ["b", "a"]
    assert not any(c.has_default or c.missing_value for c in relation.columns)


@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("int default 7", "7"),
        ("text default 'it''s, {\"x\"} \\ NULL'", 'it\'s, {"x"} \\ NULL'),
        ("text default 'NULL'", "NULL"),
        ("text default ''", ""),
        ("int[] default '{1,NULL,3}'", "{1,NULL,3}"),
        ("jsonb default '{\"a\": [1, 2]}'", '{"a": [1, 2]}'),
        ("timestamptz default '2026-01-02 03:04:05+02'", "2026-01-02 01:04:05+00"),
        ("double precision default 0.1", "0.1"),
        ("bytea default '\\x00ff'", "\\x00ff"),
        ("box default '(3,4),(1,2)'", "(3,4),(1,2)"),
    ],
)
def test_a_default_that_older_rows_have_is_taken_as_text(
    database: Database,
    announce: Announce,
    connection: psycopg.Connection,
    definition: str,
    value: str,
) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("insert into t values (1)")
    database.execute(f"alter table t add column c {definition}")
    found = column(complete_relation(connection, announce(), previous=None), "c")
    assert (found.missing_value, found.has_default) == (value, True)


@pytest.mark.parametrize("also", ["", "alter table t alter column c drop default"])
def test_a_default_that_older_rows_of_partitions_have_is_found_with_them(
    database: Database, announce: Announce, connection: psycopg.Connection, also: str
) -> None:
    database.execute("create table t (id int primary key) partition by hash (id)")
    for i in range(2):
        database.execute(
            f"create table p{i} partition of t for values with (modulus 2, remainder {i})"
        )
    database.execute("alter table t add column c int default 7")
    database.execute(also)
    found = column(complete_relation(connection, announce(), previous=None), "c")
    assert (found.missing_value, found.has_default) == ("7", True)


def test_a_default_that_rewrote_older_rows_is_told_apart(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("alter table t add column c float8 default random()")
    found = column(complete_relation(connection, announce(), previous=None), "c")
    assert (found.missing_value, found.has_default) == (None, True)


def test_the_type_below_a_domain_is_found_through_domains_over_domains(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create domain price as numeric(10,2)")
    database.execute("create domain net_price as price check (value > 0)")
    database.execute("create domain prices as numeric(10,2)[]")
    database.execute("create table t (a net_price primary key, b prices, c numeric(10,2))")
    announcement = announce()
    kept = complete_relation(connection, announcement, previous=None)
    database.execute("alter table t drop a, drop b")
    lost = complete_relation(connection, announcement, previous=None)
    for relation in (kept, lost):
        assert [(c.base_oid, c.base_modifier) for c in relation.columns] == [
            (1700, (10 << 16 | 2) + 4),
            (1231, (10 << 16 | 2) + 4),
            (None, -1),
        ]


def test_under_a_column_list_no_older_value_is_known(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id int primary key)")
    database.execute("alter table t add column c int default 7")
    database.execute("create publication p for table t (id)")
    database.execute("alter publication p set table t (id, c)")
    found = column(complete_relation(connection, announce(), previous=None), "c")
    assert (found.missing_value, found.has_default) == (None, True)
    database.execute("alter publication p set table t where (id > 0)")
    found = column(complete_relation(connection, announce(), previous=None), "c")
    assert (found.missing_value, found.has_default) == ("7", True)


def test_a_table_that_is_gone_keeps_what_the_wire_says_or_what_was_known(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id bigint primary key, n varchar(5) default 'x')")
    announced = announce()
    known = complete_relation(connection, announced, previous=None)
    database.execute("drop table t")
    assert complete_relation(connection, announced, previous=known) == known
    bare = complete_relation(connection, announced, previous=None)
    shown = [(c.name, c.attnum, c.type_name, c.in_identity) for c in bare.columns]
    assert shown == [("id", None, "bigint", True), ("n", None, "character varying(5)", False)]
    assert key_names(bare) == ["id"]


def test_a_column_renamed_since_has_no_number_unless_it_was_known(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id bigint primary key, old text)")
    announced = announce()
    known = complete_relation(connection, announced, previous=None)
    database.execute("alter table t rename column old to new")
    assert column(complete_relation(connection, announced, previous=None), "old").attnum is None
    assert complete_relation(connection, announced, previous=known) == known
    renamed = complete_relation(connection, announce(), previous=known)
    assert column(renamed, "new").attnum == 2


def test_a_type_that_the_catalog_has_changed_since_is_the_announced_one(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id bigint primary key, n int)")
    announced = announce()
    database.execute("alter table t alter column n type text")
    found = column(complete_relation(connection, announced, previous=None), "n")
    assert (found.type_name, found.attnum) == ("integer", None)


def test_the_key_under_each_identity(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (a int, b int not null, c int not null, primary key (a))")
    database.execute("create unique index t_cb on t (c, b)")
    default = complete_relation(connection, announce(), previous=None)
    assert key_names(default) == ["a"]
    database.execute("alter table t replica identity using index t_cb")
    index = complete_relation(connection, announce(), previous=default)
    assert sorted(key_names(index)) == ["b", "c"]
    database.execute("alter table t replica identity full")
    full = complete_relation(connection, announce(), previous=index)
    assert key_names(full) == ["a"]
    assert all(c.in_identity for c in full.columns)
    database.execute("alter table t drop constraint t_pkey")
    assert key_names(complete_relation(connection, announce(), previous=None)) == []


def test_columns_kept_beside_the_key_in_its_index_are_none_of_it(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (note text, a int, primary key (a) include (note))")
    database.execute("alter table t replica identity full")
    assert key_names(complete_relation(connection, announce(), previous=None)) == ["a"]


def test_a_deferrable_key_is_the_key_under_identity_full(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (a int primary key deferrable, note text)")
    database.execute("alter table t replica identity full")
    assert key_names(complete_relation(connection, announce(), previous=None)) == ["a"]


def test_the_same_announcement_completed_again_is_the_same_version(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id bigint primary key, n int)")
    first = complete_relation(connection, announce(), previous=None)
    again = complete_relation(connection, announce(), previous=first)
    assert again.version == first.version
    database.execute("alter table t add column more text")
    assert complete_relation(connection, announce(), previous=first).version != first.version


@pytest.mark.parametrize("partition", ["", "partition by range (id)"])
def test_a_new_column_is_plain_only_where_no_rewrite_can_have_filled_it(
    database: Database, announce: Announce, connection: psycopg.Connection, partition: str
) -> None:
    database.execute(f"create table t (id int primary key) {partition}")
    if partition:
        database.execute("create table t1 partition of t for values from (0) to (9)")
    database.execute("insert into t values (1)")

    def add(name: str, *statements: str, previous: Relation | None) -> tuple[bool, Relation]:
        database.execute(f"alter table t add column {name} int")
        for statement in statements:
            database.execute(statement)
        relation = complete_relation(connection, announce(), previous=previous)
        found = column(relation, name)
        assert found.missing_value is None
        return not found.has_default, relation

    first = complete_relation(connection, announce(), previous=None)
    is_plain, relation = add("a", previous=first)
    assert is_plain
    is_plain, relation = add("b", "alter table t alter b type bigint using 700", previous=relation)
    assert not is_plain
    is_plain, relation = add("c", previous=relation)
    assert is_plain, "that rewrite came before"
    is_plain, ahead = add("d", previous=None)
    assert is_plain, "nothing is older than the first announcement"
    is_plain, _ = add("e", "vacuum full t", previous=ahead)
    assert not is_plain

    # Announced when the catalog had a column more, which a rewrite may have filled by then.
    early = announce()
    database.execute("alter table t add column f int")
    seen = complete_relation(connection, early, previous=None)
    relation = complete_relation(connection, announce(), previous=seen)
    assert column(relation, "f").has_default
    known = complete_relation(connection, early, previous=replace(seen, storage=relation.storage))
    relation = complete_relation(connection, announce(), previous=known)
    assert not column(relation, "f").has_default


@pytest.mark.parametrize("partition", ["", "partition by range (id)"])
def test_values_that_a_rewrite_may_have_changed_make_another_version(
    database: Database, announce: Announce, connection: psycopg.Connection, partition: str
) -> None:
    database.execute(f"create table t (id int primary key, v text, w int) {partition}")
    if partition:
        database.execute("create table t1 partition of t for values from (0) to (9)")
    database.execute("insert into t values (1, 'a', 1)")
    using = "alter table t alter v type text using upper(v)"

    def complete(*statements: str, previous: Relation | None) -> Relation:
        for statement in statements:
            database.execute(statement)
        return complete_relation(connection, announce(), previous=previous)

    first = complete(previous=None)
    assert complete("vacuum full t", previous=first).version == first.version
    assert complete("truncate t", previous=first).version == first.version
    seen = complete(previous=first)
    plain = complete("alter table t alter w set statistics 7", previous=seen)
    assert plain.version == first.version
    assert complete(previous=first).version != first.version, "both happened: not known which"
    rewritten = complete(using, previous=plain)
    assert rewritten.version != plain.version
    assert complete(previous=rewritten).version == rewritten.version
    again = complete(using, "alter table t add column more int", previous=rewritten)
    assert again.rewritten not in {plain.rewritten, rewritten.rewritten}


def test_values_of_before_the_first_announcement_are_not_taken_for_those_of_now(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    database.execute("create table t (id int primary key, v text)")
    ((xid,),) = database.query("select pg_current_xact_id()::text::bigint")
    announced = announce()
    database.execute("alter table t alter v type text using upper(v)")
    first = complete_relation(connection, announced, previous=None, xid=xid)
    assert first.rewritten == 0
    assert complete_relation(connection, announced, previous=first).rewritten


def test_history_11_a_column_that_may_be_another_of_its_name_is_not_known(
    database: Database, announce: Announce, connection: psycopg.Connection
) -> None:
    def next_xid() -> int:
        ((xid,),) = database.query("select pg_current_xact_id()::text::bigint")
        return int(xid)

    database.execute("create table t (id int primary key, gone int, d int, e int)")
    database.execute("alter table t drop gone")
    before, announced = next_xid(), announce()
    database.execute("alter table t drop e")
    database.execute("alter table t add e int")
    database.execute("alter table t alter d set default 7")
    after = next_xid()

    def number(xid: int | None, previous: Relation | None = None) -> list[int | None]:
        relation = complete_relation(connection, announced, previous=previous, xid=xid)
        return [column.attnum for column in relation.columns]

    assert number(before) == [1, 3, None], "e may be the one that was dropped"
    assert number(after) == [1, 3, 5]
    known = complete_relation(connection, announced, previous=None, xid=after)
    assert number(before, known) == [1, 3, 5], "what was known of it will be compared"
