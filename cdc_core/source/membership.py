"""Reads a table's membership: the publications, and their entries, that send the table.

Walgate must notice a change of membership. While a table is out of a publication, or has another
row filter, column list or set of operations, the stream leaves changes out and does not report it.
Each membership has its own oid, and a new one gets another. Every ALTER of a publication's options
gives the publication's row another xmin. A table that moves to another schema and back gets another
row of pg_depend for its schema. If a membership is younger than a transaction, nobody knows which
membership sent that transaction. Then the transaction is marked as older than the membership.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from cdc_core.errors import RECOVER, Retry, SourceError
from cdc_core.source.connection import source_errors
from cdc_core.vocabulary import quote_identifier

# Publications can hold whole schemas since this version.
_SCHEMAS_SINCE = 150000
_OLDER = "older than "
_NOT_PUBLISHED = "not published"

# A partition may be published by any table above it. The transaction is recent, and a younger row
# has a smaller age. An old row has a negative age, or the largest age possible.
# Source: PostgreSQL documentation, System Catalogs (pg_publication, …_rel, …_namespace).
_MEMBERSHIP = """
with above as (
    select %(oid)s::bigint::oid as oid
    union select relid from pg_partition_ancestors(%(oid)s::bigint::oid::regclass))
select p.pubname::text, p.oid::bigint, p.xmin::text, m.oid || coalesce('@' || m.moved::text, ''),
       exists (select from unnest(array[p.xmin, m.xmin, m.moved]) x
               where age(x) < age(%(xid)s::text::xid) and age(x) >= 0)
from pg_publication p
left join lateral ({members}) m on true
where p.pubname = any(%(publications)s) and (p.puballtables or m.oid is not null)
order by 1, 4
"""
_TABLES = """
select r.oid, r.xmin, null::xid as moved from pg_publication_rel r
where r.prpubid = p.oid and r.prrelid in (select oid from above)
"""
_SCHEMAS = """
union all
select n.oid, n.xmin, d.xmin
from pg_publication_namespace n
join pg_depend d on d.refclassid = 'pg_namespace'::regclass and d.refobjid = n.pnnspid
where n.pnpubid = p.oid
  and d.classid = 'pg_class'::regclass and d.objid in (select oid from above)
"""

_BY_TABLE = _MEMBERSHIP.format(members=_TABLES)
_BY_TABLE_OR_SCHEMA = _MEMBERSHIP.format(members=_TABLES + _SCHEMAS)


def read_membership(
    connection: psycopg.Connection,
    publications: Sequence[str],
    oid: int,
    *,
    xid: int,
    previous: str | None,
) -> str:
    """Read the membership that sends the table now, as text, for transaction `xid` of the stream.

    If no publication holds the table, the result is `previous`, the membership known before, or
    `not published` without one. Raises: SourceError.
    """
    has_schemas = connection.info.server_version >= _SCHEMAS_SINCE
    asked = {"oid": oid, "xid": str(xid), "publications": list(publications)}
    with source_errors("read by what a table is published"):
        if has_schemas:
            rows = connection.execute(_BY_TABLE_OR_SCHEMA, asked).fetchall()
        else:
            rows = connection.execute(_BY_TABLE, asked).fetchall()
    if not rows:
        return previous or _NOT_PUBLISHED
    names = ", ".join(
        f"{quote_identifier(name)} {publication}.{xmin}/{member or '*'}"
        for name, publication, xmin, member, _ in rows
    )
    # This also marks a table that is new to the log: it may have been removed from the publication
    # and added again after this transaction. A table that was added while this transaction was open
    # is marked without need; it is then read whole.
    return f"{_OLDER}{names}" if any(younger for *_, younger in rows) else names


def require_publications(connection: psycopg.Connection, publications: Sequence[str]) -> None:
    """Check that every publication exists. Raises: SourceError."""
    with source_errors("look for the publications"):
        found = connection.execute(
            "select pubname::text from pg_publication where pubname = any(%s)",
            (list(publications),),
        ).fetchall()
    missing = sorted({*publications} - {name for (name,) in found})
    if missing:
        raise SourceError(
            f"publication {', '.join(missing)} does not exist: the server sends no changes of its"
            " tables, or ends the stream",
            fix="make the publication; then, if nothing is staged yet, make the slot again,"
            " otherwise " + RECOVER,
            retry=Retry.AFTER_FIX,
        )
