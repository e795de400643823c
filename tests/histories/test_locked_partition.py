"""A partition that somebody holds locked keeps neither its own table nor another from the log."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from cdc_core.errors import SourceError
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import open_connection, source_errors
from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import Database

TABLES = """
    create table plain (id int primary key);
    create table split (id int, part int, primary key (id, part)) partition by list (part);
    create table split_1 partition of split for values in (1);
    create table split_2 partition of split for values in (2)
"""
WAITING = """
    select count(*) from pg_stat_activity
    where wait_event_type = 'Lock' and application_name = %s
"""


def test_changes_beside_a_locked_partition_are_staged(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    pipeline = make_pipeline(database)
    database.execute("alter publication walgate set (publish_via_partition_root = true)")
    pipeline.make_slot_again()
    database.execute(TABLES)
    with psycopg.connect(database.dsn) as holder:
        holder.execute("lock table split_1 in access exclusive mode")
        capture = pipeline.start_streaming()
        database.execute("insert into split values (1, 2)")
        database.execute("insert into plain values (1)")
        lsn = pipeline.current_lsn()
        wait_for(lambda: pipeline.staged() >= lsn, DEADLINE_S, "the changes to be staged")
        pipeline.finish(capture)


def test_a_wait_for_a_lock_that_was_given_up_ends_on_the_server(database: Database) -> None:
    database.execute("create table plain (id int primary key)")
    name = f"impatient {database.name}"
    source = SourceSettings(dsn=database.dsn)
    with psycopg.connect(database.dsn) as holder:
        holder.execute("lock table plain in access exclusive mode")
        connection = open_connection(source, application_name=name, answer_s=0.5)
        with pytest.raises(SourceError), source_errors("read a table"):
            connection.execute("select from plain")
        connection.close()
        wait_for(lambda: database.query(WAITING, [name]) == [(0,)], 20.0, "the wait to end")
