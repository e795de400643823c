"""Finds the objects of a database that logical replication never sends, by kind."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from cdc_core.source.problems import Problem, Severity

_NAMES_SHOWN = 5

_LEFT_OUT = """
select kind, count(*), (array_agg(name order by name))[1:%s]
from (
  select case when c.relpersistence = 't' then 'temporary tables'
              when c.relkind = 'S' then 'sequences' when c.relkind = 'f' then 'foreign tables'
              when c.relkind = 'm' then 'materialized views' else 'unlogged tables' end as kind,
         c.oid::regclass::text as name
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
  where n.nspname <> 'information_schema' and n.nspname !~ '^pg_toast'
    and (n.nspname !~ '^pg_' or c.relpersistence = 't')
    and (c.relkind in ('S', 'f', 'm') or c.relkind in ('r', 'p') and c.relpersistence <> 'p')
) found group by kind
union all
select 'large objects', count(*), null from pg_largeobject_metadata having count(*) > 0
order by 1
"""


def find_left_out(connection: psycopg.Connection) -> Iterator[Problem]:
    """Find the objects that exist and are never sent: one note for each kind."""
    for kind, count, names in connection.execute(_LEFT_OUT, (_NAMES_SHOWN,)):
        shown = ", ".join(names or ())
        more = f" and {count - len(names)} more" if names and count > len(names) else ""
        yield Problem(
            Severity.NOTE,
            "not_replicated",
            f"{kind} are not replicated by PostgreSQL's logical replication",
            f"no {kind}, or none that readers need",
            f"{shown}{more}" if shown else str(count),
            "nothing",
        )
