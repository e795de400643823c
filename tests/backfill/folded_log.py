"""What the log leaves of a table, folded in plain Python, and what the source has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.postgres_server import Database

Rows = dict[str, tuple[str | None, ...]]


def read_changes(root: Path, table: str, *operations: str) -> list[dict[str, Any]]:
    """A table's entries in order of position; of some operations, or of all."""
    filters: list[tuple[str, str, Any]] = [("table", "=", table)]
    if operations:
        filters.append(("op", "in", list(operations)))
    log = DeltaTable(root / "staging" / "changes").to_pyarrow_table(filters=filters)
    order = [("epoch", "ascending"), ("commit_lsn", "ascending"), ("seq", "ascending")]
    entries: list[dict[str, Any]] = log.sort_by(order).to_pylist()
    return entries


def fold(root: Path, table: str) -> Rows:
    """What the log leaves of a table whose key is its first column."""
    state: dict[str, tuple[tuple[int, int, int], tuple[str | None, ...]]] = {}
    for entry in read_changes(root, table):
        at = (entry["epoch"], entry["commit_lsn"], entry["seq"])
        match entry["op"]:
            case "truncate":
                state.clear()
            case "sweep":
                start = tuple(json.loads(entry["detail"])["start"])
                state = {key: row for key, row in state.items() if row[0] >= start}
            case "delete":
                state.pop(entry["old_values"][0], None)
            case _:
                if entry["old_values"] is not None:
                    state.pop(entry["old_values"][0], None)
                values = tuple(entry["values"])
                state[values[0]] = (at, values)
    return {key: values for key, (_, values) in state.items()}


def read_source(database: Database, table: str) -> Rows:
    """All rows by the text of their first column, as the types' own output has them."""
    columns = database.query(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " order by attnum",
        [table],
    )
    texts = (f"case when {name} is not null then format('%s', {name}) end" for (name,) in columns)
    return {row[0]: row for row in database.query(f"select {', '.join(texts)} from {table}")}
