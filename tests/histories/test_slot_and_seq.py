"""H28 and H31: a slot that capture must not take; a transaction in which everything happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

MIXED = """
    insert into a values (1), (2);
    select pg_logical_emit_message(true, 'walgate', '{"mark": "one"}');
    select pg_logical_emit_message(true, 'other', 'theirs');
    select pg_logical_emit_message(false, 'walgate', '{"mark": "not of the transaction"}');
    update a set id = 3 where id = 2;
    truncate a, b;
    select pg_logical_emit_message(true, 'walgate', 'no mark');
    select pg_logical_emit_message(true, 'walgate', '[7]');
    insert into b values (1, 'x');
    select pg_logical_emit_message(true, 'walgate', '{"mark": "two"}');
    insert into a values (9);
    delete from b;
"""
EXPECTED = [
    (0, "insert", "public.a"),
    (1, "insert", "public.a"),
    (2, "mark", None),
    (4, "update", "public.a"),
    (5, "truncate", "public.a"),
    (6, "truncate", "public.b"),
    (9, "insert", "public.b"),
    (10, "mark", None),
    (11, "insert", "public.a"),
    (12, "delete", "public.b"),
]


def test_history_28_a_slot_made_with_two_phase_is_refused(pipeline: Pipeline) -> None:
    database, name = pipeline.database, [pipeline.slot]
    database.query("select pg_drop_replication_slot(%s)", name)
    database.query("select pg_create_logical_replication_slot(%s, 'pgoutput', false, true)", name)
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    assert answer.exit_code == 4, answer
    assert "two_phase" in answer.complaints[-1]
    assert pipeline.slot_facts()["pid"] is None


def read_entries(root: Path, xid: int) -> list[dict[str, Any]]:
    """Give all that staging holds of a transaction, in order of seq."""
    table = DeltaTable(root / "staging" / "changes").to_pyarrow_table()
    rows = [row for row in table.to_pylist() if row["xid"] == xid]
    return sorted(rows, key=lambda row: row["seq"])


def test_history_31_seq_counts_every_entry_and_is_the_same_however_batches_are_cut(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database.execute("create table a (id bigint primary key)")
    database.execute("create table b (id bigint primary key, note text)")
    pipeline = make_pipeline(database)
    first, second = pipeline.slot, f"c_{database.name}"
    database.query("select pg_copy_logical_replication_slot(%s, %s)", [first, second])
    xid = database.query(
        "with moved as (select txid_current() % (2::bigint ^ 32)::bigint as xid) select xid + 1"
        " from moved"
    )[0][0]
    database.execute(f"begin; {MIXED} commit")
    pipeline.catch_up()
    other_root = pipeline.folder / "other"
    pipeline.catch_up(
        WALGATE_SOURCE__SLOT=second,
        WALGATE_LAKE__ROOT=str(other_root),
        WALGATE_CAPTURE__BATCH_ROWS="1",
        WALGATE_CAPTURE__SPOOL_BYTES="1",
        WALGATE_CAPTURE__BATCH_BYTES="4",
    )
    entries = read_entries(pipeline.root, xid)
    assert [(row["seq"], row["op"], row["table"]) for row in entries] == EXPECTED
    assert read_entries(other_root, xid) == entries
