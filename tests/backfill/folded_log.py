"""What the log leaves of a table, folded in plain Python, and what the source has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.postgres_server import Database

# A value that no entry of the log has sent.
HOLE = "(never sent)"

Rows = dict[str, tuple[str | None, ...]]


def read_changes(root: Path, table: str | None, *operations: str) -> list[dict[str, Any]]:
    """Entries of a table, or of all, in order of position; of some operations, or of all."""
    filters: list[tuple[str, str, Any]] = [] if table is None else [("table", "=", table)]
    if operations:
        filters.append(("op", "in", list(operations)))
    log = DeltaTable(root / "staging" / "changes").to_pyarrow_table(filters=filters or None)
    order = [("epoch", "ascending"), ("commit_lsn", "ascending"), ("seq", "ascending")]
    entries: list[dict[str, Any]] = log.sort_by(order).to_pylist()
    return entries


def fold(root: Path, table: str) -> Rows:
    """What the log leaves of a table whose key is its first column; HOLE for a value never sent."""
    state: dict[str, tuple[tuple[int, int, int], tuple[str | None, ...]]] = {}
    for entry in read_changes(root, table):
        at = (entry["epoch"], entry["commit_lsn"], entry["seq"])
        match entry["op"]:
            case "truncate":
                state.clear()
            case "sweep":
                state = {key: row for key, row in state.items() if not is_swept(entry, key, row)}
            case "delete":
                state.pop(entry["old_values"][0], None)
            case _:
                values = list(entry["values"])
                _, before = state.get(values[0], (at, ()))
                if entry["old_values"] is not None:
                    _, before = state.pop(entry["old_values"][0], (at, ()))
                for index in entry["unchanged"] or ():
                    values[index] = before[index] if before else HOLE
                state[values[0]] = (at, tuple(values))
    return {key: values for key, (_, values) in state.items()}


def is_swept(entry: dict[str, Any], key: str, row: tuple[tuple[int, int, int], Any]) -> bool:
    """Whether a sweep of all keys, or of a range of whole numbers, removes a row."""
    said = json.loads(entry["detail"])
    low, high = said["low"], said["high"]
    inside = (low is None or int(key) >= int(low[0])) and (high is None or int(key) <= int(high[0]))
    return row[0] < tuple(said["start"]) and inside


def read_source(database: Database, table: str) -> Rows:
    """All rows by the text of their first column, as the types' own output has them."""
    columns = database.query(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
        " order by attnum",
        [table],
    )
    texts = (f"case when {name} is not null then format('%s', {name}) end" for (name,) in columns)
    return {row[0]: row for row in database.query(f"select {', '.join(texts)} from {table}")}
