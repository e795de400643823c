"""Entries of the log and rows of tables, as lines for a person."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc_core.vocabulary import Lsn, Relation, ReplicaIdentity, quote_identifier
from spark_jobs.target.result import TableMergeResult
from tests.transcripts.names import Names
from tests.transcripts.transcript import MERGE, Section

# Characters. A text that is longer is cut, and its length follows.
_LONG = 40
_CUT = 16
_WIDTH = 100


@dataclass(slots=True)
class TableState:
    """A table after a merge, its folder in the lake, and its rows in the order of the key.

    `merged` is None if the merge wrote nothing to the table. `halt` is why and where the table is
    halted, if it is. `rows` is None if the lake has no such table. `version` is the table's Delta
    version. `types` is by column.
    """

    name: str
    path: Path
    merged: TableMergeResult | None
    halt: tuple[str, Lsn] | None
    rows: pa.Table | None = None
    version: int = 0
    types: dict[str, str] = field(default_factory=dict)


def show_entries(
    steps: Sequence[Sequence[dict[str, Any]]], relations: Mapping[int, Relation], names: Names
) -> list[list[str]]:
    """Show the log entries of each step: a line for each.

    One more line comes before the first entry of each transaction, and of each relation version.
    """
    announced: dict[str, Relation] = {}
    shown = []
    for entries in steps:
        lines: list[str] = []
        transaction = None
        for entry in entries:
            relation = relations[entry["relation_version"]]
            if announced.get(entry["table"]) != relation:
                announced[entry["table"]] = relation
                lines.append(_show_relation(relation, names))
            if transaction != (transaction := (entry["epoch"], entry["commit_lsn"])):
                lines.append(_show_transaction(entry, names))
            lines.append(_show_entry(entry, relation))
        shown.append(lines)
    return shown


def show_table(table: TableState, names: Names) -> Section:
    """Show what a merge did to a table, and the rows that it left."""
    sentences = []
    if table.merged is not None:
        done = table.merged
        counts = f"{done.inserted} inserted, {done.updated} updated, {done.deleted} deleted"
        sentences.append(f"{MERGE}of {table.name}: {counts}.")
    if table.halt is not None:
        reason, lsn = table.halt
        sentences.append(f"{MERGE}halts {table.name} at {names.lsns[lsn]}: {reason}.")
    lines = []
    if table.rows is None:
        sentences.append(f"The lake has no {table.path}.")
    else:
        sentences.append(f"Version {table.version} of {table.path} has:")
        lines = _show_rows(table.rows, table.types, names)
    return Section("\n".join(textwrap.wrap(" ".join(sentences), _WIDTH)), "\n".join(lines))


def _show_rows(rows: pa.Table, types: Mapping[str, str], names: Names) -> list[str]:
    """A line for each row; `_raw` and `_holes` only if a row has something in them.

    The source's columns come first: where a merge adds a column depends on how it writes.
    """
    shown = [
        name
        for name in sorted(rows.column_names, key=lambda name: name.startswith("_"))
        if name not in {"_raw", "_holes"} or rows.column(name).null_count < len(rows)
    ]
    cells = [[_show_cell(name, row[name], names) for name in shown] for row in rows.to_pylist()]
    grid = [shown, [types[name] for name in shown], *cells]
    widths = [max(len(line[i]) for line in grid) for i in range(len(shown))]
    lines = [
        " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in grid
    ]
    return [*lines[:2], "-+-".join("-" * width for width in widths), *lines[2:]]


def _show_relation(relation: Relation, names: Names) -> str:
    columns = ", ".join(_show_column(relation, i) for i in range(len(relation.columns)))
    left_out = "".join(f"; column {number} left out" for number in relation.left_out)
    identity = relation.identity.name.lower()
    oid = names.oids[relation.oid]
    return f"relation {_name(relation)} {oid}: {columns}{left_out}; identity {identity}"


def _show_column(relation: Relation, number: int) -> str:
    column = relation.columns[number]
    words = [quote_identifier(column.name), column.type_name]
    if number in relation.key:
        words.append("key" if len(relation.key) == 1 else f"key {relation.key.index(number) + 1}")
    if column.has_default:
        words.append(f"(older rows have {_show_text(column.missing_value)})")
    if column.hashed_by is not None:
        words.append("(hashed)")
    return " ".join(words)


def _show_transaction(entry: dict[str, Any], names: Names) -> str:
    xid, time = names.xids[entry["xid"]], names.times[entry["committed_at"]]
    commit, end = names.lsns[entry["commit_lsn"]], names.lsns[entry["end_lsn"]]
    return f"transaction {xid}: epoch {entry['epoch']}, commit {commit}, end {end}, {time}"


def _show_entry(entry: dict[str, Any], relation: Relation) -> str:
    parts = []
    if entry["values"] is not None:
        parts.append(_show_values(entry["values"], relation, entry["unchanged"] or ()))
    if entry["old_values"] is not None:
        parts.append(_show_old(entry["old_values"], relation))
    if entry["detail"] is not None:
        parts.append(_show_detail(entry["detail"]))
    words = f"{entry['seq']:>3} {entry['op']} {_name(relation)}"
    return f"{words}: {'; '.join(parts)}" if parts else words


def _show_detail(detail: str) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in json.loads(detail).items())


def _show_values(
    values: Sequence[str | None], relation: Relation, unchanged: Iterable[int] = ()
) -> str:
    left = set(unchanged)
    shown = []
    for i, (column, text) in enumerate(zip(relation.columns, values, strict=True)):
        assert i not in left or text is None, "a value that was not sent is NULL in the log"
        value = "unchanged" if i in left else _show_text(text)
        shown.append(f"{quote_identifier(column.name)} {value}")
    return ", ".join(shown)


def _show_old(values: Sequence[str | None], relation: Relation) -> str:
    if relation.identity is ReplicaIdentity.FULL:
        return f"old row: {_show_values(values, relation)}"
    others = {text for i, text in enumerate(values) if i not in relation.key}
    assert others <= {None}, "the source sends only the key of the old row"
    names = (quote_identifier(relation.columns[i].name) for i in relation.key)
    key = (f"{name} {_show_text(values[i])}" for name, i in zip(names, relation.key, strict=True))
    return f"old key: {', '.join(key)}"


def _name(relation: Relation) -> str:
    return quote_identifier(relation.table.name)


def _show_cell(name: str, value: Any, names: Names) -> str:  # noqa: PLR0911 - One for each type.
    match name, value:
        case "_commit_lsn", lsn:
            return names.lsns[lsn]
        case "_committed_at", time:
            return names.times[time]
        case "_raw", [*texts]:
            return ", ".join(f"{column} {_show_text(text)}" for column, text in sorted(texts))
        case "_holes", [*columns]:
            return ", ".join(columns)
        case _, Decimal():
            return format(value, "f")
        case _, bytes():
            return f"0x{value.hex()}"
        case _, str() | None:
            return _show_text(value)
        case _:
            return str(value)


def _show_text(text: str | None) -> str:
    """Write a text as SQL would, on one line."""
    if text is None:
        return "NULL"
    if len(text) > _LONG:
        return f"{_quote(text[:_CUT] + '…')} ({len(text)} characters)"
    return _quote(text)


def _quote(text: str) -> str:
    doubled = text.replace("'", "''")
    if "\n" not in text:
        return f"'{doubled}'"
    escaped = doubled.replace("\\", "\\\\").replace("\n", "\\n")
    return f"E'{escaped}'"
