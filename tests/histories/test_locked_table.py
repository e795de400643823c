"""A table that somebody holds locked: a look at it gives up after a while, and says why.

From version 16 on the server locks each published table when it lists them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database
from tests.walgate_command import walgate_command, walgate_environment

NARROW = {"WALGATE_SOURCE__PUBLICATION": '["narrow"]'}
# Longer than a look waits for a lock.
SAID_WITHIN_S = 40.0
RETRY_LATER = 3
TABLES = ("public.common", "public.other")
WAITING = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, one of them in both publications."""
    return fill(pipeline)


def fill(pipeline: Pipeline) -> Pipeline:
    """Make the tables, the second publication, and a slot that is younger than both."""
    pipeline.database.execute(
        "create table common (id int primary key); create table other (id int primary key);"
        " insert into common values (1); insert into other values (1);"
        " create publication narrow for table common"
    )
    pipeline.make_slot_again()
    return pipeline


def start(shop: Pipeline, command: str, *arguments: str) -> ChildProcess:
    """Start a command; it ends with the test at the latest."""
    child = ChildProcess(
        walgate_command(command, *arguments, "--config", shop.folder / "walgate.toml"),
        log=shop.folder / f"{command}.log",
        environment=walgate_environment(),
    )
    shop.children.append(child)
    return child


@contextmanager
def hold_other(shop: Pipeline) -> Iterator[None]:
    """Hold one of the tables locked, as an ALTER in an open transaction does."""
    with psycopg.connect(shop.database.dsn) as holder:
        holder.execute("lock table other in access exclusive mode")
        yield


def wait_for_words(child: ChildProcess, *words: str) -> None:
    """Wait until a child has written a line that has all of some words."""

    def has_written() -> bool:
        return any(all(word in line for word in words) for line in child.output().splitlines())

    wait_for(has_written, SAID_WITHIN_S, f"a line with {words}")


def wait_until_waiting(shop: Pipeline) -> None:
    """Wait until a session of the database waits for a lock."""
    name = [shop.database.name]
    wait_for(lambda: shop.database.query(WAITING, name), DEADLINE_S, "a session to wait")


def test_capture_that_looks_for_what_was_not_sent_says_why_it_begins_again(shop: Pipeline) -> None:
    shop.catch_up(**NARROW)
    with hold_other(shop):
        capture = shop.start_streaming()
        shop.database.execute("insert into common values (2)")
        lsn = shop.current_lsn()
        wait_for_words(capture, "session ended", "list the published tables", "public.other by PID")
    wait_for(lambda: shop.staged() >= lsn, DEADLINE_S, "the change to be staged")
    shop.finish(capture)


def test_capture_that_waits_for_a_locked_table_can_be_stopped(shop: Pipeline) -> None:
    shop.catch_up(**NARROW)
    with hold_other(shop):
        capture = shop.start_streaming()
        shop.database.execute("insert into common values (2)")
        wait_until_waiting(shop)
        capture.send(signal.SIGTERM)
        wait_for(lambda: not capture.is_running, SAID_WITHIN_S, "capture to end")
    shop.catch_up()


def test_a_backfill_of_several_tables_says_what_it_waits_for_and_goes_on(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    shop = fill(make_pipeline(database))
    with hold_other(shop):
        backfill = start(shop, "backfill", *TABLES)
        wait_for_words(backfill, "size of a table is unknown", "public.other", "lock")
        wait_for_words(backfill, "backfill waits", "lock")
    assert backfill.wait(DEADLINE_S) == 0, backfill.output()
    reports = BackfillLedger(shop.lake).read_newest()
    assert {name: reports[name].state for name in TABLES} == dict.fromkeys(
        TABLES, BackfillState.DONE
    )


def test_a_backfill_that_waits_for_the_size_of_a_table_can_be_stopped(shop: Pipeline) -> None:
    with hold_other(shop):
        backfill = start(shop, "backfill", *TABLES)
        wait_until_waiting(shop)
        backfill.send(signal.SIGTERM)
        wait_for(lambda: not backfill.is_running, SAID_WITHIN_S, "the backfill to end")


@pytest.mark.parametrize(
    "command",
    [
        ("recover",),
        ("check",),
        ("publish", "public.common"),
        ("backfill", "--all"),
        pytest.param(("verify",), marks=pytest.mark.soak),
    ],
    ids=" ".join,
)
def test_a_command_names_the_table_that_it_could_not_look_at(
    shop: Pipeline, command: tuple[str, ...]
) -> None:
    shop.catch_up()
    require_named(shop, *command)


def test_init_names_the_table_that_it_could_not_look_at(shop: Pipeline) -> None:
    (shop.folder / "walgate.toml").unlink()
    require_named(shop, "init", "--create", "--dsn", shop.database.dsn)


def require_named(shop: Pipeline, *command: str) -> None:
    """Run a command while the table is locked: it must end, and name the table."""
    with hold_other(shop):
        child = start(shop, *command)
        wait_for(lambda: not child.is_running, SAID_WITHIN_S, "the command to end")
    assert child.wait() == RETRY_LATER, child.output()
    assert "public.other by PID" in child.output()
