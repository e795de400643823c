"""Checks that a key has one order in the source, which reads a range, and in Spark, which sweeps.

Otherwise a sweep removes rows that are in the source (history 17): the source cuts the range under
a linguistic collation, and Spark evaluates it by the order of bytes.
"""

from __future__ import annotations

import re

import psycopg

from cdc_core.source.connection import source_errors
from cdc_core.spooled import Key, Scope
from cdc_core.vocabulary import Column, Relation

# Types in the order of numbers or of bytes: int2, int4, int8, oid, bool, bytea, uuid. The text of a
# uuid has this order, too.
_ORDERED = frozenset({21, 23, 20, 26, 16, 17, 2950})
_DATE, _TEXT, _VARCHAR = 1082, 25, 1043
_TEXTS = frozenset({_TEXT, _VARCHAR})
# A date that the lake's type holds. Other dates are NULL in the lake, and NULL has no order.
_PLAIN_DATE = re.compile(r"\d{4}-\d\d-\d\d\Z")
# The columns in the order of bytes. In UTF-8 this is also the order of code points.
_BYTEWISE = """
select a.attname::text from pg_attribute a join pg_collation c on c.oid = a.attcollation
cross join (select datcollate, to_jsonb(d) ->> 'datlocprovider' as provider
            from pg_database d where datname = current_database()) own
where a.attrelid = %s and current_setting('server_encoding') = 'UTF8' and (
    c.collname in ('C', 'POSIX', 'ucs_basic', 'pg_c_utf8')
    or (c.collname = 'default' and coalesce(own.provider, 'c') in ('c', 'b')
        and own.datcollate in ('C', 'POSIX')))
"""


def find_unordered(connection: psycopg.Connection, relation: Relation, scope: Scope) -> str | None:
    """Explain why Spark cannot find the rows between the bounds; None if it can.

    Raises: SourceError.
    """
    with source_errors(f"read the collations of {relation.table}"):
        bytewise = {name for (name,) in connection.execute(_BYTEWISE, (relation.oid,))}
    bounds = [key for key in (scope.low, scope.high) if key is not None]
    width = max((len(key) for key in bounds), default=0)
    for place, index in enumerate(relation.key[:width]):
        column = relation.columns[index]
        kind = column.base_oid or column.type_oid
        if kind in _ORDERED or (kind in _TEXTS and column.name in bytewise):
            continue
        if kind == _DATE and place == 0 and _are_dates(bounds):
            continue
        return _explain(column, kind)
    return None


def _are_dates(bounds: list[Key]) -> bool:
    return len(bounds) == 2 and all(_PLAIN_DATE.match(key[0]) for key in bounds)  # noqa: PLR2004 - Both ends.


def _explain(column: Column, kind: int) -> str:
    if kind in _TEXTS:
        return f"the collation of {column.name} does not sort by bytes"
    if kind == _DATE:
        return f"{column.name} is not between two dates of the years 1 to 9999"
    return f"the lake sorts {column.name} ({column.type_name}) in another order"
