"""Which tables are published unasked: those that a publication does not break."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest

from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.creation import create_replication, list_keyed_tables
from tests.postgres_server import Database

TABLES = {
    "plain": ("id int primary key, v text", ""),
    "kept_beside": ("id int, v text, primary key (id) include (v)", ""),
    "whole": ("id int primary key, v text", "replica identity full"),
    "deferred_whole": ("id int primary key deferrable, v text", "replica identity full"),
    "indexed": ("id int not null unique, v text", "replica identity using index indexed_id_key"),
    "deferred": ("id int primary key deferrable, v text", ""),
    "keyless": ("id int, v text", ""),
    "keyless_whole": ("id int, v text", "replica identity full"),
    "nothing": ("id int primary key, v text", "replica identity nothing"),
    "by_generated": ("a int, v text, id int generated always as (a) stored primary key", ""),
    "generated": ("id int primary key, v text, g int generated always as (id) stored", ""),
    "generated_whole": (
        "id int primary key, v text, g int generated always as (id) stored",
        "replica identity full",
    ),
}


def test_no_table_is_published_unasked_whose_own_update_then_fails(database: Database) -> None:
    for name, (columns, identity) in TABLES.items():
        database.execute(f"create table {name} ({columns})")
        if identity:
            database.execute(f"alter table {name} {identity}")
    source = SourceSettings(dsn=database.dsn, slot=f"s_{database.name}")
    with closing(open_connection(source)) as connection:
        tables = list_keyed_tables(connection)
        create_replication(connection, source, tables)
    expected = {"plain", "kept_beside", "whole", "deferred_whole", "indexed", "generated"}
    if database.server.version < 18:
        expected |= {"generated_whole"}
    assert {table.name for table in tables} == expected
    for table in tables:
        database.execute(f"update {table} set v = 'x'")
    for name in ("deferred", "generated_whole"):
        if name not in expected:
            database.execute(f"alter publication walgate add table {name}")
            with pytest.raises(psycopg.Error, match="cannot update table"):
                database.execute(f"update {name} set v = 'x'")
