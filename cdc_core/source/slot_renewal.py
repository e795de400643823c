"""Replaces a dead slot by a new one. Walgate never drops anything else in the source."""

from __future__ import annotations

import time

import psycopg
from psycopg import sql

from cdc_core.errors import Retry, SlotInUse, SourceError
from cdc_core.source.connection import source_errors
from cdc_core.source.creation import SLOT_TIMEOUT_S, make_slot_statement
from cdc_core.source.slot import read_slot, require_kind

# A capture that is refused holds the slot for a moment.
_PATIENCE_S = 15.0
_RETRY_S = 0.3

# The statement itself checks that the slot is idle, of pgoutput and of this database: an earlier
# look may be outdated.
_DROP = """
select pg_drop_replication_slot(slot_name) from pg_replication_slots
where slot_name = %s and plugin = 'pgoutput' and database = current_database() and not active
"""


def format_drop(name: str) -> str:
    """The SQL that drops a slot, as a person would write it."""
    return f"SELECT pg_drop_replication_slot('{name}');"


def format_make(name: str) -> str:
    """The SQL that makes a slot, as a person would write it."""
    return make_slot_statement(name).as_string() + ";"


def drop_dead_slot(connection: psycopg.Connection, name: str) -> None:
    """Drop a slot, if it exists; wait some seconds if it is in use.

    Raises: SlotInUse, SourceError.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while (slot := read_slot(connection, name)) is not None:
        require_kind(slot, database=connection.info.dbname)
        with source_errors(f"drop slot {name}"):
            connection.execute(_DROP, (name,))
        if slot.active_pid is not None and time.monotonic() > deadline:
            raise SlotInUse(
                f"slot {name} is in use by PID {slot.active_pid}, expected nobody: it was not"
                " dropped",
                fix="stop that consumer, then run `walgate recover --yes` again",
                retry=Retry.LATER,
            )
        if slot.active_pid is not None:
            time.sleep(_RETRY_S)


def make_slot(connection: psycopg.Connection, name: str) -> None:
    """Make a slot; the server first waits for the open transactions. Raises: SourceError."""
    timeout = sql.SQL("set statement_timeout = {}").format(sql.Literal(f"{SLOT_TIMEOUT_S}s"))
    with source_errors(f"make slot {name}"):
        connection.execute(timeout)
        try:
            connection.execute(make_slot_statement(name))
        except psycopg.errors.QueryCanceled as exc:
            raise SourceError(
                f"slot {name} was not made in {SLOT_TIMEOUT_S} s: it waits for every transaction"
                " that is open on the server",
                fix="end the long transactions in pg_stat_activity, then run"
                " `walgate recover --yes` again",
                retry=Retry.LATER,
            ) from exc
        finally:
            connection.execute("reset statement_timeout")
