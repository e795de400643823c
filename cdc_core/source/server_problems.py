"""Finds problems of the server, of its settings, and of the connected role."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.settings import SourceSettings
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.role import MAY_REPLICATE

OLDEST_VERSION, NEWEST_VERSION = 14, 18

# The first minor releases whose decoding loses nothing beside concurrent DDL (bugs 18938, 18942).
_SOUND_MINORS = {14: 19, 15: 14, 16: 10, 17: 6}

# Capture sends its status four times in this time. A shorter one leaves no room for a busy host.
_SHORTEST_SENDER_TIMEOUT_MS = 5000

_SERVER = """
select current_setting('server_version_num')::int, current_setting('server_version'),
       current_database(), current_user::text, pg_is_in_recovery(),
       current_setting('wal_level'), current_setting('server_encoding'),
       current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,
       (select count(*) from pg_replication_slots), (select count(*) from pg_stat_replication),
       (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'),
       (select setting::int from pg_settings where name = 'wal_sender_timeout'),
       coalesce((select setting::int from pg_settings
                 where name = 'idle_replication_slot_timeout'), 0),
       ({may_replicate}),
       exists (select from pg_proc where proname = 'pg_logical_emit_message'
               and has_function_privilege(oid, 'execute'))
"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server reports about itself.

    Units: `sender_timeout_ms` in milliseconds and `slot_timeout_s` in seconds, both 0 for none;
    `wal_keep_mb` in megabytes, negative without a limit.
    """

    version_number: int
    version: str
    database: str
    role: str
    is_standby: bool
    wal_level: str
    encoding: str
    slot_limit: int
    sender_limit: int
    slots: int
    senders: int
    wal_keep_mb: int
    sender_timeout_ms: int
    slot_timeout_s: int
    may_replicate: bool
    may_emit: bool

    @property
    def major(self) -> int:
        """The server's major version."""
        return self.version_number // 10000

    @property
    def wal_limit(self) -> int | None:
        """Bytes of WAL that a slot may keep; None without a limit."""
        return None if self.wal_keep_mb < 0 else self.wal_keep_mb << 20


def read_server(connection: psycopg.Connection) -> ServerFacts:
    """Read what every role may see of the server."""
    query = sql.SQL(_SERVER).format(may_replicate=sql.SQL(MAY_REPLICATE))
    row = connection.execute(query).fetchone()
    assert row is not None
    return ServerFacts(*row)


def find_server_problems(
    server: ServerFacts, source: SourceSettings, connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find the problems of server and role."""
    yield from _find_setting_problems(server, source)
    yield from _find_timeout_problems(server)
    yield from _find_role_problems(server, connection)


def _find_setting_problems(server: ServerFacts, source: SourceSettings) -> Iterator[Problem]:
    if not OLDEST_VERSION <= server.major <= NEWEST_VERSION:
        yield Problem(
            Severity.ERROR,
            "server_version",
            "the server's version is not supported",
            f"PostgreSQL {OLDEST_VERSION} to {NEWEST_VERSION}",
            server.version,
            "replicate from a supported version",
        )
    minor = _SOUND_MINORS.get(server.major)
    if minor is not None and server.version_number % 10000 < minor:
        yield Problem(
            Severity.WARNING,
            "server_minor",
            "this minor release can lose changes that are made during DDL",
            f"{server.major}.{minor} or later",
            server.version,
            f"update the server to the newest {server.major}.x",
        )
    if server.is_standby:
        yield Problem(
            Severity.ERROR,
            "standby",
            "the server is a standby",
            "a primary, where marks can be written",
            "recovery in progress",
            "name the primary in [source] dsn, or add target_session_attrs=read-write to it",
        )
    if server.wal_level != "logical":
        yield Problem(
            Severity.ERROR,
            "wal_level",
            "the WAL cannot be decoded",
            "wal_level logical",
            server.wal_level,
            "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        )
    if server.senders >= server.sender_limit:
        yield Problem(
            Severity.ERROR,
            "wal_senders",
            "no walsender is free",
            f"fewer than max_wal_senders = {server.sender_limit} in use",
            str(server.senders),
            f"ALTER SYSTEM SET max_wal_senders = {server.senders + 5}; then restart the server",
        )
    if server.encoding == "SQL_ASCII":
        yield Problem(
            Severity.WARNING,
            "encoding",
            "the database does not check the encoding of its text",
            "an encoding such as UTF8",
            server.encoding,
            "check that all its text is UTF-8: Walgate cannot decode other bytes",
        )
    if source.origin != "any" and server.major < 16:  # noqa: PLR2004 - the option came with 16.
        yield Problem(
            Severity.ERROR,
            "origin",
            "changes cannot be filtered by origin",
            "PostgreSQL 16 or later",
            server.version,
            'set [source] origin = "any"',
        )


def _find_timeout_problems(server: ServerFacts) -> Iterator[Problem]:
    # Capture sets a timeout of its own, but keeps a shorter one. 0 means no timeout.
    if 0 < server.sender_timeout_ms < _SHORTEST_SENDER_TIMEOUT_MS:
        yield Problem(
            Severity.WARNING,
            "wal_sender_timeout",
            "the server disconnects capture if a busy host delays its answers",
            f"wal_sender_timeout of {_SHORTEST_SENDER_TIMEOUT_MS} ms or more",
            f"{server.sender_timeout_ms} ms",
            "ALTER SYSTEM SET wal_sender_timeout = '60s'; SELECT pg_reload_conf();",
        )
    if server.slot_timeout_s:
        yield Problem(
            Severity.WARNING,
            "slot_timeout",
            "the server invalidates the slot of a capture that is stopped for long",
            "idle_replication_slot_timeout = 0, or longer than any outage",
            f"{server.slot_timeout_s} s",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf();",
        )


def _find_role_problems(server: ServerFacts, connection: psycopg.Connection) -> Iterator[Problem]:
    role = sql.Identifier(server.role)
    if not server.may_replicate:
        grant = sql.SQL("ALTER ROLE {} REPLICATION;").format(role)
        yield Problem(
            Severity.ERROR,
            "role_replication",
            f"role {server.role} may not replicate",
            "the attribute REPLICATION",
            "a role without it",
            grant.as_string(connection),
        )
    if not server.may_emit:
        grant = sql.SQL("GRANT EXECUTE ON FUNCTION {}(boolean, text, text) TO {};").format(
            sql.Identifier("pg_catalog", "pg_logical_emit_message"), role
        )
        yield Problem(
            Severity.ERROR,
            "role_messages",
            f"role {server.role} may not write marks",
            "EXECUTE on pg_logical_emit_message",
            "no such privilege",
            grant.as_string(connection),
        )
