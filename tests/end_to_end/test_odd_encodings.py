"""Bytes that are not UTF-8 are kept as they came, and capture goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from deltalake import DeltaTable

from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database, PostgresServer


@pytest.fixture
def ascii_database(postgres: PostgresServer) -> Iterator[Database]:
    """Lend a database that stores whatever bytes it is given, on each server in turn."""
    name = f"ascii_{postgres.version}"
    postgres.execute("postgres", f"create database {name} encoding 'SQL_ASCII' template template0")
    yield Database(postgres, name)
    postgres.drop_database(name)


def test_f29_a_row_that_is_not_utf8_is_kept_undecoded_and_the_next_ones_are_not(
    ascii_database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    ascii_database.execute("create table notes (id bigint primary key, note text)")
    pipeline = make_pipeline(ascii_database)
    ascii_database.execute("insert into notes values (1, 'plain')")
    ascii_database.execute(r"insert into notes values (2, E'caf\xe9'), (3, E'caf\xc3\xa9')")
    pipeline.catch_up()
    ascii_database.execute(r"update notes set note = E'\xff' where id = 1")
    ascii_database.execute("delete from notes where id = 2")
    pipeline.catch_up()
    log = DeltaTable(pipeline.root / "staging" / "changes").to_pyarrow_table()
    rows = [row for row in log.sort_by("commit_lsn").to_pylist() if row["op"] != "mark"]
    rows.sort(key=lambda row: (row["commit_lsn"], row["seq"]))
    shown = [(row["op"], row["values"] or row["old_values"]) for row in rows]
    assert shown == [
        ("insert", ["1", "plain"]),
        ("undecoded", None),
        ("insert", ["3", "café"]),
        ("undecoded", None),
        ("delete", ["2", None]),
    ]
    kept = [json.loads(row["detail"]) for row in rows if row["op"] == "undecoded"]
    assert b"caf\xe9" in bytes.fromhex(kept[0]["message"])
    assert b"\xff" in bytes.fromhex(kept[1]["message"])
    assert all(row["table"] == "public.notes" for row in rows)
