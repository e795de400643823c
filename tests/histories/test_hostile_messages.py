"""A role without any right writes messages under our prefix: capture goes on, and starts again."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
from deltalake import DeltaTable

from cdc_core.backfill.marks import Watermark, format_backfill_mark
from cdc_core.backfill.visibility import Snapshot
from tests.capture.hostile_messages import BACKFILL, MEMORY, WORST
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

ROLE = "stranger"
MESSAGE = "select pg_logical_emit_message(%s, 'walgate', %s::bytea)"
# Capture takes this for a worker's. The SQL makes its snapshot long: 60 exceed `spool_bytes`.
WATERMARK = format_backfill_mark(
    Watermark(BACKFILL, MEMORY, 0, 1, Snapshot.parse("1:9999999:"), Snapshot.parse("1:1:"), 0)
)
MANY_LARGE = """
    select count(pg_logical_emit_message(true, 'walgate', watermark))
    from (select replace(%s, '"1:9999999:"', '"1:9999999:' || string_agg(i::text, ',') || '"')
                 as watermark
          from generate_series(1000000, 1090000) i) one, generate_series(1, 60) again
"""


def test_what_any_role_may_write_neither_ends_capture_nor_keeps_it_from_starting(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database.execute("create table a (id bigint primary key)")
    pipeline = make_pipeline(database)
    database.execute(f"drop role if exists {ROLE}")
    database.execute(f"create role {ROLE} nologin")
    try:
        child = pipeline.start_streaming(WALGATE_CAPTURE__SPOOL_BYTES="8MB")
        with psycopg.connect(database.dsn, autocommit=True) as stranger:
            stranger.execute(f"set role {ROLE}".encode())
            for content in WORST:
                for transactional in (True, False):
                    stranger.execute(MESSAGE, [transactional, content])
            stranger.execute("select pg_logical_emit_message(true, repeat('p', 3000000), 'x')")
            stranger.execute(MANY_LARGE, [WATERMARK])
        database.execute("insert into a values (1)")
        pipeline.wait_until_staged(pipeline.current_lsn())
        assert "spool opened" in child.output()
        assert "messages of other programs skipped" in child.output()
        child.kill()
        database.execute("insert into a values (2)")
        pipeline.catch_up()
        pipeline.catch_up()
        log = DeltaTable(pipeline.root / "staging" / "changes").to_pyarrow_table()
        inserted = [row["values"] for row in log.to_pylist() if row["op"] == "insert"]
        assert sorted(inserted) == [["1"], ["2"]]
    finally:
        database.execute(f"drop role {ROLE}")
