"""Finds problems of the publications: missing, empty, younger than the slot, open to all tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.settings import SourceSettings
from cdc_core.source.problems import Problem, Severity

_ACTIONS = ("insert", "update", "delete", "truncate")

_PUBLICATIONS = """
select pubname::text, pubinsert, pubupdate, pubdelete, pubtruncate,
       puballtables {or_schemas},
       coalesce(age(p.xmin) <= (select age(catalog_xmin) from pg_replication_slots
                                where slot_name = {slot}), false)
from pg_publication p where pubname = any({names}) order by pubname
"""
_HAS_SCHEMAS = "or exists (select from pg_publication_namespace where pnpubid = p.oid)"
# Since this version a publication can hold whole schemas.
_SCHEMAS_SINCE = 15


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication; `is_open` if it takes in tables that are made later."""

    name: str
    actions: frozenset[str]
    is_open: bool
    may_be_younger: bool


def read_publications(
    connection: psycopg.Connection, source: SourceSettings, *, major: int
) -> list[Publication]:
    """Read the configured publications that exist, in order of name."""
    schemas = sql.SQL(_HAS_SCHEMAS if major >= _SCHEMAS_SINCE else "")
    query = sql.SQL(_PUBLICATIONS).format(
        or_schemas=schemas,
        slot=sql.Literal(source.slot),
        names=sql.Literal(list(source.publication)),
    )
    return [
        Publication(
            name=name,
            actions=frozenset(a for a, has in zip(_ACTIONS, flags, strict=True) if has),
            is_open=is_open,
            may_be_younger=younger,
        )
        for name, *flags, is_open, younger in connection.execute(query)
    ]


def find_publication_problems(
    publications: Sequence[Publication],
    source: SourceSettings,
    connection: psycopg.Connection,
    *,
    table_count: int,
) -> Iterator[Problem]:
    """Find the problems of the configured publications, which hold `table_count` tables."""
    known = {publication.name for publication in publications}
    for name in source.publication:
        if name not in known:
            create = sql.SQL("CREATE PUBLICATION {} FOR TABLE …").format(sql.Identifier(name))
            yield Problem(
                Severity.ERROR,
                "publication_missing",
                f"publication {name} does not exist",
                "a publication in this database",
                "none of that name",
                f"`walgate init --create`, or {create.as_string(connection)} and then make the"
                " slot again: a slot cannot read changes that are older than its publication",
            )
    if publications and not table_count:
        add = sql.SQL("ALTER PUBLICATION {} ADD TABLE …;")
        yield Problem(
            Severity.ERROR,
            "publication_empty",
            f"no table is published by {', '.join(sorted(known))}",
            "at least one table",
            "none",
            add.format(sql.Identifier(publications[0].name)).as_string(connection),
        )
    for publication in publications:
        if publication.may_be_younger:
            yield Problem(
                Severity.WARNING,
                "publication_younger",
                f"publication {publication.name} may be younger than slot {source.slot}",
                "publication first, then slot",
                "a publication that may have been made or altered after the slot",
                "if it was made after the slot and nothing is staged yet, drop the slot and make"
                " it again; otherwise nothing",
            )
        if publication.is_open:
            yield Problem(
                Severity.NOTE,
                "publication_open",
                f"publication {publication.name} includes every table that is created later, and"
                " the source's own UPDATE and DELETE fail on such a table if it has no key",
                "new tables with a primary key",
                "a publication of all tables, or of a schema",
                "nothing, or publish tables by name",
            )
