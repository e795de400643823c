"""Finds what replication does not follow as a reader may expect: partitions and inheritance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import psycopg
from psycopg import sql

from cdc_core.source.problems import Problem, Severity
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.table_problems import table_error


def find_partition_problems(
    table: PublishedTable, connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find the problems of one table's partitions, and of tables that inherit from it."""
    if table.has_children:
        yield Problem(
            Severity.NOTE,
            "inheritance",
            "a SELECT in the source also returns rows of the tables that inherit from this table;"
            " the table in the lake does not have these rows",
            "SELECT … FROM ONLY, or no inheritance",
            "tables that inherit",
            "nothing, or read the tables together with UNION ALL",
            table=str(table.table),
        )
    if table.kind != "p":
        return
    for leaf, identified in table.leaves:
        if not identified >= table.key_columns:
            alter = sql.SQL("ALTER TABLE {} REPLICA IDENTITY DEFAULT;")
            yield table_error(
                table,
                "partition_identity",
                f"partition {leaf} sends old rows without the key of the whole table",
                ", ".join(sorted(table.key_columns)),
                ", ".join(sorted(identified)) or "replica identity nothing",
                alter.format(sql.Identifier(leaf.schema, leaf.name)).as_string(connection),
            )
    yield Problem(
        Severity.WARNING,
        "leaf_truncate",
        "PostgreSQL does not send a TRUNCATE of a single partition if the root is published; it"
        " does not send the rows of a partition that is attached or detached either",
        "TRUNCATE of the whole table, or DELETE and INSERT",
        "a partitioned table",
        "do not TRUNCATE single partitions, and attach only empty ones",
        table=str(table.table),
    )


def find_separate_partitions(
    tables: Sequence[PublishedTable], connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find partitioned tables whose partitions are published as separate tables."""
    apart = defaultdict(list)
    for table in tables:
        if table.root is not None:
            apart[table.root].append(table)
    for root, partitions in apart.items():
        publication = partitions[0].publications[0]
        fix = sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true);")
        yield Problem(
            Severity.WARNING,
            "partitions_apart",
            f"the partitions of {root} are replicated as separate tables; a row that moves to"
            " another partition is deleted in one table and inserted in another",
            "one table, the root",
            f"{len(partitions)} partitions without publish_via_partition_root",
            fix.format(sql.Identifier(publication)).as_string(connection)
            + " before anything is staged, or leave it",
            table=str(partitions[0].table),
        )
