"""Reads the replication slot; checks that capture holds it and that it continues what is staged."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import psycopg

from cdc_core.errors import RECOVER, Retry, SlotInUse, SlotLost, SourceError
from cdc_core.source.connection import CAPTURE_NAME, source_errors
from cdc_core.vocabulary import Lsn


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of `pg_replication_slots` (PostgreSQL documentation, section 52.20).

    Units: `retained_bytes` of WAL that the slot holds back, None on a standby; `safe_wal_size` in
    bytes, None if the server sets no limit. `inactive_seconds` is how long the slot was not in use,
    `invalidation` why the server gave it up: both are known from PostgreSQL 17 on.
    """

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    active_pid: int | None
    confirmed_flush: Lsn | None
    restart: Lsn | None
    wal_status: str | None
    safe_wal_size: int | None
    retained_bytes: int | None
    two_phase: bool
    inactive_seconds: float | None
    invalidation: str | None

    @property
    def is_lost(self) -> bool:
        """Whether the server has given up the slot."""
        return self.wal_status == "lost" or self.restart is None


@dataclass(frozen=True, slots=True)
class Holder:
    """The walsender that holds a slot.

    Two reads are equal if the client sent no status in between. `replied_at` is by the clock of the
    client; None if this role may not see it.
    """

    pid: int
    application: str
    replied_at: datetime | None

    @property
    def is_capture(self) -> bool:
        """Whether it is a capture of Walgate, as far as this role may see."""
        return self.application == CAPTURE_NAME and self.replied_at is not None


def read_holder(connection: psycopg.Connection, name: str) -> Holder | None:
    """Read which walsender holds the slot; None if none does. Raises: SourceError."""
    with source_errors(f"read who holds slot {name}"):
        row = connection.execute(
            """
            select active_pid, coalesce(application_name, ''), reply_time
            from pg_replication_slots left join pg_stat_replication on pid = active_pid
            where slot_name = %s and active_pid is not null
            """,
            (name,),
        ).fetchone()
    return None if row is None else Holder(*row)


def read_slot(connection: psycopg.Connection, name: str) -> Slot | None:
    """Read the slot as it is now; None if it does not exist. Raises: SourceError."""
    with source_errors(f"read slot {name}"):
        row = connection.execute(
            """
            select plugin, slot_type, database, active_pid, confirmed_flush_lsn::text,
                   restart_lsn::text, wal_status, safe_wal_size,
                   case when not pg_is_in_recovery()
                        then pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint end,
                   two_phase,
                   extract(epoch from clock_timestamp()
                           - (to_jsonb(s) ->> 'inactive_since')::timestamptz)::float8,
                   to_jsonb(s) ->> 'invalidation_reason'
            from pg_replication_slots s where slot_name = %s
            """,
            (name,),
        ).fetchone()
    if row is None:
        return None
    plugin, slot_type, database, active_pid, confirmed, restart, wal_status, safe, kept = row[:9]
    two_phase, inactive_s, invalidation = row[9:]
    return Slot(
        name=name,
        plugin=plugin,
        slot_type=slot_type,
        database=database,
        active_pid=active_pid,
        confirmed_flush=None if confirmed is None else Lsn.parse(confirmed),
        restart=None if restart is None else Lsn.parse(restart),
        wal_status=wal_status,
        safe_wal_size=safe,
        retained_bytes=kept,
        two_phase=two_phase,
        inactive_seconds=None if active_pid is not None else inactive_s,
        invalidation=invalidation,
    )


def require_usable(slot: Slot | None, *, name: str, database: str) -> Slot:
    """Return the slot if capture may consume it. Raises: SlotLost, SourceError."""
    if slot is None:
        raise SlotLost(
            f"slot {name} does not exist",
            fix="before the first run: `walgate init --create` makes it; otherwise " + RECOVER,
            retry=Retry.AFTER_FIX,
        )
    require_kind(slot, database=database)
    if slot.is_lost or slot.confirmed_flush is None:
        reason = f", invalidated for {slot.invalidation}" if slot.invalidation else ""
        raise SlotLost(
            f"slot {name} is lost: wal_status {slot.wal_status}, restart LSN {slot.restart}"
            f"{reason}; the server may have removed WAL that it needed",
            fix=RECOVER,
            retry=Retry.AFTER_FIX,
        )
    return slot


def require_kind(slot: Slot, *, database: str) -> None:
    """Check that capture can read this kind of slot, and its database. Raises: SourceError."""
    if slot.slot_type != "logical" or slot.plugin != "pgoutput":
        raise SourceError(
            f"slot {slot.name} is a {slot.slot_type} slot of plugin {slot.plugin}, expected a"
            " logical one of pgoutput",
            fix="name another slot in [source] slot",
            retry=Retry.AFTER_FIX,
        )
    if slot.database != database:
        raise SourceError(
            f"slot {slot.name} belongs to database {slot.database}, expected {database}",
            fix="name another slot in [source] slot, or the other database in [source] dsn",
            retry=Retry.AFTER_FIX,
        )
    if slot.two_phase:
        raise SourceError(
            f"slot {slot.name} was made with two_phase = true, expected false",
            fix="name another slot in [source] slot; prepared transactions arrive at their commit",
            retry=Retry.AFTER_FIX,
        )


def require_continuation(slot: Slot, *, staged: Lsn, current: Lsn) -> None:
    """Check that the slot and the server continue what staging holds. Raises: SlotLost."""
    confirmed = slot.confirmed_flush
    assert confirmed is not None
    if confirmed > staged:
        raise SlotLost(
            f"slot {slot.name} is confirmed to {confirmed}, past the staged LSN {staged}: the slot"
            " was made again, another consumer read from it, or the lake is an older copy; the log"
            " does not have the changes between these LSNs",
            fix=RECOVER,
            retry=Retry.AFTER_FIX,
        )
    if staged > current:
        raise SlotLost(
            f"the server is at {current}, before the staged LSN {staged}: it went back in time",
            fix=RECOVER,
            retry=Retry.AFTER_FIX,
        )


def require_held(slot: Slot | None, *, name: str, pid: int) -> None:
    """Check that walsender `pid` still holds the slot. Raises: SlotInUse."""
    if slot is None or slot.active_pid != pid:
        holder = "nobody" if slot is None or slot.active_pid is None else f"PID {slot.active_pid}"
        raise SlotInUse(
            f"slot {name} is held by {holder}, expected PID {pid} of this run: another capture has"
            " taken over",
            fix="nothing, if you want the other run; otherwise stop it and start this one again",
            retry=Retry.LATER,
        )
