"""What a source really committed, and what the log says: both as the same plain values, to compare.

The truth comes from a second slot of another plugin, `test_decoding`, read by SQL; the log by
deltalake. Nothing of ours is imported: this is the judge. Each table's key is its first column.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from tests.postgres_server import Database

_CELL = re.compile(r"(?:[^\s\[\"]+|\"[^\"]+\")\[[^\]]+\]:(?:'((?:[^']|'')*)'|(\S+))")
_ABSENT = {"null", "unchanged-toast-datum"}
_COLUMNS = [
    "epoch",
    "commit_lsn",
    "seq",
    "end_lsn",
    "xid",
    "table",
    "op",
    "values",
    "old_values",
]

_TIMES = ["commit_lsn", "end_lsn", "committed_at", "log_time"]


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one table; `old_key` where the source sent an old tuple."""

    table: str
    operation: str
    values: tuple[str | None, ...] = ()
    old_key: str | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction with changes; one with marks alone is none."""

    xid: int
    end_lsn: int
    changes: tuple[Change, ...]


def make_truth_slot(database: Database, name: str) -> None:
    """Make the second slot; what is committed from here on is the truth."""
    database.query("select pg_create_logical_replication_slot(%s, 'test_decoding')", [name])


def read_truth(database: Database, slot: str) -> list[Transaction]:
    """Give all that was committed since the slot was made; the slot stays where it is."""
    rows = database.query(
        "select lsn - '0/0', data from pg_logical_slot_peek_changes(%s, null, null,"
        " 'include-xids', '1', 'skip-empty-xacts', '1')",
        [slot],
    )
    transactions = []
    changes: list[Change] = []
    for lsn, text in rows:
        if text.startswith("BEGIN "):
            changes = []
        elif text.startswith("COMMIT "):
            if changes:
                transactions.append(Transaction(int(text.split()[1]), int(lsn), tuple(changes)))
        elif text.startswith("table "):
            changes += _parse_change(text)
        else:
            assert text.startswith("message: "), text
    return transactions


def read_log(root: Path) -> list[Transaction]:
    """Give all that staging holds in order of position, repeats included, marks left out."""
    table = DeltaTable(root / "staging" / "changes").to_pyarrow_table(columns=_COLUMNS)
    table = table.sort_by([(name, "ascending") for name in ("epoch", "commit_lsn", "seq")])
    transactions: list[Transaction] = []
    position = None
    for row in table.to_pylist():
        if row["op"] in {"mark", "read", "sweep"}:
            continue
        change = Change(
            row["table"], row["op"], tuple(row["values"] or ()), (row["old_values"] or [None])[0]
        )
        if position == (row["epoch"], row["commit_lsn"]):
            last = transactions.pop()
            assert (last.xid, last.end_lsn) == (row["xid"], row["end_lsn"])
            changes = (*last.changes, change)
        else:
            changes = (change,)
        position = (row["epoch"], row["commit_lsn"])
        transactions.append(Transaction(row["xid"], row["end_lsn"], changes))
    return transactions


def explain_difference(truth: list[Transaction], log: list[Transaction]) -> str | None:
    """Say where two histories part, for a person; None where they are equal."""
    for index, (true, held) in enumerate(zip(truth, log, strict=False)):
        if true != held:
            return f"transaction {index}: the source has {_show(true)}, the log {_show(held)}"
    if len(truth) != len(log):
        longer, name = (truth, "source") if len(truth) > len(log) else (log, "log")
        extra = longer[min(len(truth), len(log))]
        return f"{len(truth)} transactions, the log has {len(log)}; only the {name} has {extra}"
    return None


def require_whole_commits(root: Path) -> int:
    """Fail unless each Delta commit holds whole transactions, in order; give their number.

    Its app transaction must be the end LSN of the last of them. The log time of each transaction
    must be the greatest commit time of it and of all before it.
    """
    reached, commits = 0, 0
    times: list[tuple[int, datetime, datetime]] = []
    for actions in _read_commits(root / "staging" / "changes"):
        files = [action["add"]["path"] for action in actions if "add" in action]
        if not files:
            continue
        commits += 1
        bounds: list[tuple[int, int]] = []
        for file in files:
            content = pq.read_table(root / "staging" / "changes" / file, columns=_TIMES)
            for one in content.group_by(_TIMES).aggregate([]).to_pylist():
                bounds.append((one["commit_lsn"], one["end_lsn"]))
                times.append((one["commit_lsn"], one["committed_at"], one["log_time"]))
        (version,) = _list_staged(actions)
        assert min(bounds)[0] >= reached, "a commit holds what an earlier one reached"
        reached = max(end for _, end in bounds)
        assert version == reached, "the staged LSN is not the end of the commit's last transaction"
    greatest = itertools.accumulate((committed for _, committed, _ in sorted(times)), max)
    for (lsn, _, log_time), expected in zip(sorted(times), greatest, strict=True):
        assert log_time == expected, f"the log time at {lsn} is not the greatest commit time so far"
    return commits


def read_staged(root: Path) -> int | None:
    """Give the staged LSN as the newest commit of the log tells it; None before the first epoch.

    Cheap, for it is asked at every poll and every status update: one file is read.
    """
    for path in sorted((root / "staging" / "changes" / "_delta_log").glob("*.json"), reverse=True):
        for version in _list_staged(map(json.loads, path.read_text().splitlines())):
            return version
    folder = root / "staging" / "epochs"
    # A folder of the log is there before the first commit is.
    if not DeltaTable.is_deltatable(str(folder)):
        return None
    epochs = DeltaTable(folder).to_pyarrow_table(columns=["first_lsn"])
    return min(epochs.column("first_lsn").to_pylist(), default=None)


def read_reached(root: Path) -> set[int]:
    """Give every staged LSN that there ever was."""
    commits = _read_commits(root / "staging" / "changes")
    return {version for actions in commits for version in _list_staged(actions)}


def _list_staged(actions: Iterable[dict[str, Any]]) -> list[int]:
    """The end LSNs that the actions of a commit record."""
    recorded = [action["txn"] for action in actions if "txn" in action]
    return [txn["version"] for txn in recorded if txn["appId"] != "walgate:log_time"]


def _read_commits(folder: Path) -> Iterator[list[dict[str, Any]]]:
    for path in sorted((folder / "_delta_log").glob("*.json")):
        yield [json.loads(line) for line in path.read_text().splitlines()]


def _parse_change(text: str) -> list[Change]:
    names, operation, rest = text.removeprefix("table ").split(": ", 2)
    if operation == "TRUNCATE":
        return [Change(name, "truncate") for name in names.split(", ")]
    old, parted, new = rest.rpartition(" new-tuple: ")
    if operation == "DELETE":
        return [Change(names, "delete", old_key=_parse_cells(rest)[0])]
    old_key = _parse_cells(old)[0] if parted else None
    return [Change(names, operation.lower(), _parse_cells(new), old_key)]


def _parse_cells(text: str) -> tuple[str | None, ...]:
    return tuple(
        None if bare in _ABSENT else bare or quoted.replace("''", "'")
        for quoted, bare in _CELL.findall(text)
    )


def _show(transaction: Transaction) -> str:
    shown = f"{transaction.xid} up to {transaction.end_lsn} with {len(transaction.changes)} changes"
    return f"{shown}, the first {transaction.changes[0]}"
