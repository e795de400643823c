"""Tables with keys of every orderable type are read whole, each row once, in many chunks."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import read_changes
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer

SEED = 20261122
ROWS = 240
# Of columns of the key, and how to make row i of it.
KEYS = {
    "k_int": ("a int", "i * 7 - 500"),
    "k_composite": (
        'a text collate "en-x-icu", b int, c timestamptz',
        (
            "(array['é', 'E', 'e', 'Z', '', ' '])[i % 6 + 1], i / 24,"
            " case i % 4 when 0 then 'infinity' when 1 then '-infinity'"
            " else timestamptz '2020-01-01' + i * interval '1 hour' end"
        ),
    ),
    "k_uuid": ("a uuid", "md5(i::text)::uuid"),
    "k_numeric": (
        "a numeric",
        (
            "case i when 7 then 'NaN' when 8 then 'Infinity' when 9 then '-Infinity'"
            " when 10 then 1e40 else i / 7.0 end::numeric"
        ),
    ),
    "k_timestamp": (
        "a timestamp",
        (
            "case i when 1 then 'infinity' when 2 then '-infinity' when 3 then '0044-03-15 BC'"
            " else timestamp '1999-12-31' + i * interval '997 min' end::timestamp"
        ),
    ),
    "k_date": ("a date", "case i when 1 then 'infinity' else date '1999-12-31' + i end::date"),
    "k_bytea": ("a bytea", "decode(lpad(to_hex(i), 2 + i % 2 * 2, '0') || '00', 'hex')"),
    "k_float": ("a float8, b int", "case i % 9 when 1 then 'NaN' else i / 3.0 end::float8, i"),
    "k_bool": ("a bool, b int", "i % 2 = 0, i"),
    "k_interval": ("a interval", "i * interval '1 day 1 hour'"),
    "k_inet": ("a inet", "('10.0.0.0'::inet + i)"),
}
TEXTS = {
    "t_c": 'text collate "C"',
    "t_icu": 'text collate "en-x-icu"',
    "t_loose": "text collate loose",
    "t_default": "text",
    "t_citext": "citext",
    "t_char": "char(9)",
}


@pytest.fixture
def database15(postgres15: PostgresServer) -> Iterator[Database]:
    """Lend a database of the server that has ICU."""
    with lend_database(postgres15) as database:
        yield database


def make_texts(rng: random.Random, count: int) -> list[str]:
    """Texts that quoting, collations and CSV make trouble with."""
    pieces = ["a", "A", "á", "a\u0301", "ß", "ss", "ﬃ", "I", "\u0131", "\u0130", " ", "\t",
              "\n", "\r\n",
              '"', '""', ",", "\\", "\\.", "\\N", "NULL", "'", "''", "%s", "{}", "$1", "\u200b",
              "\u202e", "\ufeff", "\uffff", "😀", "👩\u200d👩\u200d👧", "\x01", "\x7f", "-", "_",
              "0", "10", "9", "zz", "ｱ", "漢", "한", "\u0e40\u0e01"]  # fmt: skip
    texts = {""}
    while len(texts) < count:
        texts.add("".join(rng.choices(pieces, k=rng.randint(1, 12))))
    return sorted(texts)


def make_tables(database: Database, texts: list[str]) -> list[str]:
    """Make all tables; their names."""
    database.execute("create extension citext")
    database.execute(
        "create collation loose (provider = icu, locale = 'und-u-ks-level1', deterministic = false)"
    )
    for name, (columns, values) in KEYS.items():
        key = ", ".join(column.split()[0] for column in columns.split(", "))
        database.execute(f"create table {name} ({columns}, v text, primary key ({key}))")
        filled = f"insert into {name} select {values}, i::text from generate_series(1, {ROWS}) i"
        database.execute(f"{filled} on conflict do nothing")
    for name, kind in TEXTS.items():
        database.execute(f"create table {name} (a {kind} primary key, v text)")
        text = "left(t, 9)" if name == "t_char" else "t"
        filled = f"insert into {name} select {text}, t from unnest(%s::text[]) t"
        database.execute(f"{filled} on conflict do nothing", [texts])
    database.execute("create table parts (a int, b text, primary key (a)) partition by hash (a)")
    for part in range(3):
        database.execute(
            f"create table parts_{part} partition of parts"
            f" for values with (modulus 3, remainder {part})"
        )
    database.execute(f"insert into parts select i, 'p' from generate_series(1, {ROWS}) i")
    columns = ", ".join(f"c{i} text" for i in range(199))
    database.execute(f"create table wide (a int primary key, {columns})")
    database.execute(
        f"insert into wide (a, c7, c198) select i, 'x', '' from generate_series(1, {ROWS}) i"
    )
    database.execute("create table one (a int primary key); insert into one values (1)")
    database.execute("create table empty (a int primary key)")
    return [*KEYS, *TEXTS, "parts", "wide", "one", "empty"]


def read_source(database: Database, table: str) -> list[tuple[str | None, ...]]:
    columns = database.query(
        "select attname, format_type(atttypid, atttypmod) from pg_attribute"
        " where attrelid = %s::regclass and attnum > 0 order by attnum",
        [table],
    )
    # A cast of a char(n) to text would drop its blanks.
    texts = (f"case when {name} is not null then format('%s', {name}) end" for name, _ in columns)
    return database.query(f"select {', '.join(texts)} from {table}")


def check(
    database: Database, make_pipeline: Callable[..., Pipeline], *, texts: int, chunk_rows: int
) -> None:
    print("seed", SEED)  # noqa: T201 - to run it again.
    names = make_tables(database, make_texts(random.Random(SEED), texts))
    pipeline = make_pipeline(database)
    database.execute("alter publication walgate set (publish_via_partition_root = true)")
    done = run_backfills(
        load_settings(pipeline.folder / "walgate.toml", {}),
        [TableName("public", name) for name in names],
        chunk_rows=chunk_rows,
        parallel=2,
        stop=threading.Event(),
    )
    assert len(done) == len(names)
    read: dict[str, list[tuple[str | None, ...]]] = defaultdict(list)
    for entry in read_changes(pipeline.root, None, "read"):
        read[entry["table"]].append(tuple(entry["values"]))
    for name in names:
        rows = read[f"public.{name}"]
        source = read_source(database, name)
        assert sorted(rows, key=repr) == sorted(source, key=repr), name
        assert len(rows) > {"one": 0, "empty": -1}.get(name, 50), name
        assert done[TableName("public", name)].chunks >= len(rows) // chunk_rows, name


def test_keys_of_every_type_are_read_whole(
    database15: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    check(database15, make_pipeline, texts=2000, chunk_rows=197)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_very_many_hostile_texts_are_read_whole(
    database15: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    check(database15, make_pipeline, texts=100_000, chunk_rows=997)
