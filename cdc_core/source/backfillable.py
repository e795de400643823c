"""Finds which published tables can be read whole, and why the others cannot."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import psycopg

from cdc_core.source.connection import source_errors
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.vocabulary import TableName


@dataclass(frozen=True, slots=True)
class ReadObstacle:
    """Why a table cannot be read whole, and what to do."""

    reason: str
    fix: str


def find_read_obstacles(
    connection: psycopg.Connection, publications: Iterable[str]
) -> dict[TableName, ReadObstacle | None]:
    """Find the hindrance of each published table, in order of name; None if a table has none.

    Raises: SourceError.
    """
    major = connection.info.server_version // 10000
    with source_errors("look for tables to be read whole"):
        published = read_published_tables(connection, publications, major=major)
    return {table.table: _find_hindrance(table) for table in published}


def _find_hindrance(table: PublishedTable) -> ReadObstacle | None:
    if not table.key_columns:
        return ReadObstacle(
            "the table has no key, so Walgate cannot identify its rows",
            "add a primary key, or a unique index as its replica identity",
        )
    if not table.is_readable:
        return ReadObstacle(
            "the role may not read the table",
            f"GRANT USAGE ON SCHEMA, and SELECT ON {table.table}, TO the role",
        )
    return None
