"""Finds everything that prevents a faithful replication of the source, in one pass.

Reads catalogs and settings that every role may read; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import psycopg

from cdc_core.settings import SourceSettings, TableSettings
from cdc_core.source.column_problems import find_column_problems, find_path_clashes
from cdc_core.source.concealment_problems import exclude_columns, find_concealment_problems
from cdc_core.source.connection import source_errors
from cdc_core.source.first_reading import find_costly_readings
from cdc_core.source.partition_problems import find_partition_problems, find_separate_partitions
from cdc_core.source.problems import Problem, Severity, sort_problems
from cdc_core.source.publication_problems import find_publication_problems, read_publications
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.source.server_problems import ServerFacts, find_server_problems, read_server
from cdc_core.source.slot import read_slot
from cdc_core.source.slot_problems import find_slot_problems
from cdc_core.source.table_problems import find_row_problems
from cdc_core.source.type_problems import find_type_problems
from cdc_core.source.unreplicated_objects import find_left_out


def find_problems(
    connection: psycopg.Connection,
    source: SourceSettings,
    rules: Mapping[str, TableSettings] | None = None,
) -> list[Problem]:
    """Find every problem of server, role, publications, slot and tables. Raises: SourceError.

    `rules` are the sections `[tables.…]`. Order: errors first, then warnings, then notes.
    """
    with source_errors("check the source"):
        server = read_server(connection)
        problems = [
            *find_server_problems(server, source, connection),
            *find_slot_problems(read_slot(connection, source.slot), server, source, connection),
            *_find_published(connection, source, server, rules or {}),
            *find_left_out(connection),
        ]
    return sort_problems(problems)


def _find_published(
    connection: psycopg.Connection,
    source: SourceSettings,
    server: ServerFacts,
    rules: Mapping[str, TableSettings],
) -> Iterator[Problem]:
    publications = read_publications(connection, source, major=server.major)
    names = [publication.name for publication in publications]
    tables = read_published_tables(connection, names, major=server.major)
    tables = exclude_columns(tables, rules)
    yield from find_publication_problems(publications, source, connection, table_count=len(tables))
    for table in tables:
        yield from find_row_problems(table, publications, connection)
        yield from find_partition_problems(table, connection)
        yield from find_column_problems(table, connection, major=server.major)
    yield from find_separate_partitions(tables, connection)
    yield from find_path_clashes(tables, connection)
    yield from find_concealment_problems(tables, rules)
    yield from find_type_problems(tables, rules, connection)
    yield from _find_costly_readings(tables, connection)


def _find_costly_readings(
    tables: Sequence[PublishedTable], connection: psycopg.Connection
) -> Iterator[Problem]:
    found = find_costly_readings(connection, tables)
    if found is not None:
        yield Problem(
            Severity.WARNING,
            "first_reading",
            "a first reading may write more than half of the WAL that the slot may keep",
            "tables smaller than half of max_slot_wal_keep_size, or tables that were read before",
            found.explain(),
            "raise max_slot_wal_keep_size while the first reading runs, if it is too slow",
        )
