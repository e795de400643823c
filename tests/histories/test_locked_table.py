"""A table that somebody holds locked: whoever only looks gives up, says why, and looks again.

From version 16 on the server locks each published table when it lists them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline

NARROW = {"WALGATE_SOURCE__PUBLICATION": '["narrow"]'}
# Longer than a look waits for a lock.
SAID_WITHIN_S = 40.0


@pytest.fixture
def shop(pipeline: Pipeline) -> Pipeline:
    """Two tables, one of them in both publications."""
    pipeline.database.execute(
        "create table common (id int primary key); create table other (id int primary key);"
        " insert into common values (1); insert into other values (1);"
        " create publication narrow for table common"
    )
    pipeline.make_slot_again()
    return pipeline


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
        waiting = "select from pg_stat_activity where wait_event_type = 'Lock' and datname = %s"
        name = [shop.database.name]
        wait_for(lambda: shop.database.query(waiting, name), DEADLINE_S, "capture to wait")
        capture.send(signal.SIGTERM)
        wait_for(lambda: not capture.is_running, SAID_WITHIN_S, "capture to end")
    shop.catch_up()
