"""Whether the connected role may replicate.

Walgate asks this before it opens a walsender: the refusal to open one has no SQLSTATE, so it looks
like a server that is down.
"""

from __future__ import annotations

import psycopg

from cdc_core.errors import Retry, SourceError
from cdc_core.source.connection import source_errors

# Amazon RDS grants replication by membership in a role of its own.
MAY_REPLICATE = """
select exists (select from pg_roles
               where rolname = current_user and (rolsuper or rolreplication))
    or exists (select from pg_roles
               where rolname = 'rds_replication' and pg_has_role(oid, 'member'))
"""


def may_replicate(connection: psycopg.Connection) -> bool:
    """Whether the role may open a walsender and make slots. Raises: SourceError."""
    with source_errors("read the role's attributes"):
        row = connection.execute(MAY_REPLICATE).fetchone()
    return row == (True,)


def require_replication(connection: psycopg.Connection) -> None:
    """Check that the role may open a walsender. Raises: SourceError."""
    if not may_replicate(connection):
        role = connection.info.user
        raise SourceError(
            f"role {role} may not replicate: expected the attribute REPLICATION, found none",
            fix=f'ALTER ROLE "{role}" REPLICATION; `walgate check` names what else it lacks',
            retry=Retry.AFTER_FIX,
        )
