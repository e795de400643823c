"""Finds problems of the slot: missing, of another kind, lost, in use, or retaining too much WAL."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from cdc_core.settings import SourceSettings
from cdc_core.source.problems import Problem, Severity
from cdc_core.source.retention import LEVELS, Retention, choose_budget, find_retention
from cdc_core.source.server_problems import ServerFacts
from cdc_core.source.slot import Slot

BUDGET_CODE = "slot_budget"


def find_slot_problems(
    slot: Slot | None, server: ServerFacts, source: SourceSettings, connection: psycopg.Connection
) -> Iterator[Problem]:
    """Find the problems of the slot, as it is now."""
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
            "run `walgate recover` if anything is staged; otherwise `walgate init --create`, or"
            f" {create}",
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
    if slot.is_lost:
        yield Problem(
            Severity.ERROR,
            "slot_lost",
            f"slot {name} is lost: the server has removed WAL that it needed",
            "wal_status reserved or extended",
            f"wal_status {slot.wal_status}",
            "run `walgate recover`: it makes the slot again, and Walgate reads every table again",
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
    retention = find_retention(slot, choose_budget(source, server.wal_limit))
    if retention is not None:
        yield from find_budget_problems(retention, None)


def find_budget_problems(retention: Retention, growth: float | None) -> Iterator[Problem]:
    """Find whether the slot retains much WAL; `growth` is in bytes a second, None if not known."""
    if retention.level:
        yield Problem(
            Severity.ERROR if retention.level == LEVELS[-1] else Severity.WARNING,
            BUDGET_CODE,
            f"slot {retention.slot} has used {retention.level} % of its budget",
            f"less than {LEVELS[0]} %",
            retention.explain(growth),
            "run `walgate replicate`, end long transactions of the source, or raise"
            " [source] slot_budget",
        )


def _find_activity_problems(slot: Slot, connection: psycopg.Connection) -> Iterator[Problem]:
    """Report that the slot is in use: a note if the application name is ours, else an error."""
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
