"""Everything that keeps a source from being replicated truthfully, found at once.

Reads catalogs and settings that every role may read; changes nothing. Tables: published_tables.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
from psycopg import sql

from cdc_core.quantities import format_size
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.published_tables import find_table_problems
from cdc_core.source.role import MAY_REPLICATE
from cdc_core.source.slot import Slot, read_slot

OLDEST_VERSION, NEWEST_VERSION = 14, 18
DEFAULT_SLOT_BUDGET = 10 << 30
BUDGET_WARNING_SHARE = 0.8

# The first minors in which decoding beside concurrent DDL loses nothing (bugs 18938, 18942).
_SOUND_MINORS = {14: 19, 15: 14, 16: 10, 17: 6}
_ACTIONS = ("insert", "update", "delete", "truncate")

_SERVER = """
select current_setting('server_version_num')::int, current_setting('server_version'),
       current_database(), current_user::text, pg_is_in_recovery(),
       current_setting('wal_level'), current_setting('server_encoding'),
       current_setting('max_replication_slots')::int, current_setting('max_wal_senders')::int,
       (select count(*) from pg_replication_slots), (select count(*) from pg_stat_replication),
       (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'),
       ({may_replicate}),
       exists (select from pg_proc where proname = 'pg_logical_emit_message'
               and has_function_privilege(oid, 'execute'))
"""
_PUBLICATIONS = """
select pubname::text, pubinsert, pubupdate, pubdelete, pubtruncate,
       coalesce(age(p.xmin) <= (select age(catalog_xmin) from pg_replication_slots
                                where slot_name = %s), false)
from pg_publication p where pubname = any(%s) order by pubname
"""


@dataclass(frozen=True, slots=True)
class _Server:
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
    may_replicate: bool
    may_emit: bool

    @property
    def major(self) -> int:
        return self.version_number // 10000

    @property
    def wal_limit(self) -> int | None:
        """Bytes of WAL that a slot may keep; None without a limit."""
        return None if self.wal_keep_mb < 0 else self.wal_keep_mb << 20


@dataclass(frozen=True, slots=True)
class _Publication:
    name: str
    actions: frozenset[str]
    may_be_younger: bool


def find_problems(connection: psycopg.Connection, source: SourceSettings) -> list[Problem]:
    """Find every problem of server, role, publications, slot and tables. Raises: SourceError.

    Order: errors first, then warnings, then notes.
    """
    query = sql.SQL(_SERVER).format(may_replicate=sql.SQL(MAY_REPLICATE))
    with source_errors("check the source"):
        row = connection.execute(query).fetchone()
        assert row is not None
        server = _Server(*row)
        slot = read_slot(connection, source.slot)
        publications = [
            _Publication(
                name=name,
                actions=frozenset(a for a, has in zip(_ACTIONS, flags, strict=True) if has),
                may_be_younger=younger,
            )
            for name, *flags, younger in connection.execute(
                _PUBLICATIONS, (source.slot, list(source.publication))
            )
        ]
        problems = [
            *_find_server_problems(server, source),
            *_find_role_problems(server, connection),
            *_find_publication_problems(publications, source, connection),
            *_find_slot_problems(slot, server, source, connection),
            *find_table_problems(
                connection,
                {publication.name: publication.actions for publication in publications},
                major=server.major,
            ),
        ]
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))


def read_slot_budget(connection: psycopg.Connection, source: SourceSettings) -> int:
    """Give the bytes of WAL the slot may keep: configured, else the server's limit, else 10 GB."""
    with source_errors("read max_slot_wal_keep_size"):
        row = connection.execute(
            "select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'"
        ).fetchone()
    return _choose_budget(source, None if row is None or row[0] < 0 else row[0] << 20)


def _choose_budget(source: SourceSettings, wal_limit: int | None) -> int:
    return source.slot_budget or wal_limit or DEFAULT_SLOT_BUDGET


def _find_server_problems(server: _Server, source: SourceSettings) -> Iterator[Problem]:
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
            "this minor release can lose changes made beside DDL",
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
            "the database does not check its text",
            "an encoding such as UTF8",
            server.encoding,
            "see that all text in it is UTF-8: other bytes cannot be decoded",
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


def _find_role_problems(server: _Server, connection: psycopg.Connection) -> Iterator[Problem]:
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


def _find_publication_problems(
    publications: list[_Publication], source: SourceSettings, connection: psycopg.Connection
) -> Iterator[Problem]:
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
                " slot again: a slot cannot read what is older than its publication",
            )
    for publication in publications:
        if publication.may_be_younger:
            yield Problem(
                Severity.WARNING,
                "publication_younger",
                f"publication {publication.name} may be younger than slot {source.slot}",
                "publication first, then slot",
                "a publication made or altered within the slot's reach",
                "if it was made after the slot and nothing is staged yet, drop the slot and make"
                " it again; otherwise nothing",
            )


def _find_slot_problems(
    slot: Slot | None, server: _Server, source: SourceSettings, connection: psycopg.Connection
) -> Iterator[Problem]:
    name = source.slot
    create = f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput');"
    drop = f"SELECT pg_drop_replication_slot('{name}'); {create}"
    if server.wal_limit is None:
        yield Problem(
            Severity.WARNING,
            "wal_unlimited",
            "a stopped capture can fill the server's disk",
            "max_slot_wal_keep_size with a limit",
            "-1",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'; SELECT pg_reload_conf();",
        )
    if slot is None:
        yield Problem(
            Severity.ERROR,
            "slot_missing",
            f"slot {name} does not exist",
            "a logical slot of pgoutput",
            "none of that name",
            f"before the first run `walgate init --create`, or {create}",
        )
        if server.slots >= server.slot_limit:
            yield Problem(
                Severity.ERROR,
                "slots_exhausted",
                "no slot is free",
                f"fewer than max_replication_slots = {server.slot_limit} in use",
                str(server.slots),
                f"ALTER SYSTEM SET max_replication_slots = {server.slots + 5}; then restart the"
                " server",
            )
        return
    if slot.slot_type != "logical" or slot.plugin != "pgoutput":
        yield Problem(
            Severity.ERROR,
            "slot_plugin",
            f"slot {name} cannot be read",
            "a logical slot of pgoutput",
            f"a {slot.slot_type} slot of {slot.plugin or 'no plugin'}",
            "name another slot in [source] slot",
        )
        return
    if slot.database != server.database:
        yield Problem(
            Severity.ERROR,
            "slot_database",
            f"slot {name} belongs to another database",
            server.database,
            str(slot.database),
            "name another slot in [source] slot, or the other database in [source] dsn",
        )
    if slot.two_phase:
        yield Problem(
            Severity.ERROR,
            "slot_two_phase",
            f"slot {name} sends prepared transactions before their commit",
            "two_phase = false",
            "two_phase = true",
            f"name another slot in [source] slot, or before the first run {drop}",
        )
    yield from _find_activity_problems(slot, connection)
    if slot.wal_status == "lost" or slot.restart is None:
        yield Problem(
            Severity.ERROR,
            "slot_lost",
            f"slot {name} is lost: the server has removed WAL that it needed",
            "wal_status reserved or extended",
            f"wal_status {slot.wal_status}",
            f"the changes in between are gone: {drop} starts again from now, in an empty lake",
        )
    elif slot.wal_status == "unreserved":
        yield Problem(
            Severity.WARNING,
            "slot_unreserved",
            f"slot {name} will be lost at one of the next checkpoints",
            "wal_status reserved or extended",
            "wal_status unreserved",
            "run `walgate replicate` now, and raise max_slot_wal_keep_size",
        )
    budget = _choose_budget(source, server.wal_limit)
    retained = slot.retained_bytes or 0
    if retained > budget * BUDGET_WARNING_SHARE:
        yield Problem(
            Severity.ERROR if retained > budget else Severity.WARNING,
            "slot_budget",
            f"slot {name} keeps much WAL",
            f"less than {format_size(budget)}",
            format_size(retained),
            "run `walgate replicate`, end long transactions of the source, or raise"
            " [source] slot_budget",
        )


def _find_activity_problems(slot: Slot, connection: psycopg.Connection) -> Iterator[Problem]:
    """Tell our own capture from another consumer by its application name, where it is shown."""
    if slot.active_pid is None:
        return
    row = connection.execute(
        "select application_name from pg_stat_activity where pid = %s", (slot.active_pid,)
    ).fetchone()
    application = (row[0] if row else None) or "an application not shown to this role"
    is_ours = application.startswith("walgate")
    yield Problem(
        Severity.NOTE if is_ours else Severity.ERROR,
        "slot_active",
        f"slot {slot.name} is in use",
        "Walgate's own capture or nobody",
        f"{application}, PID {slot.active_pid}",
        "nothing" if is_ours else "stop that consumer, or name another slot in [source] slot",
    )
