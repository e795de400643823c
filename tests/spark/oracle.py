"""The fold in plain Python: what a log leaves, one entry after the other.

Imports nothing of the project. A key is a queue of row versions, oldest first. A departure whose
whole row was sent removes the version of this transaction that equals it, else the one from before;
a departure by key removes the oldest. A value not sent is that of the version it replaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

HOLE = "<hole>"

Key = tuple[str, ...]
Texts = list[str | None]
Rows = dict[Key, Texts]
Entry = dict[str, Any]


@dataclass
class Version:
    texts: Texts
    is_new: bool = True


def fold(transactions: Iterable[list[Entry]], key: list[int], *, whole: bool, state: Rows) -> Rows:
    """Apply whole transactions to a table's rows by key; `whole` is replica identity full."""
    queues = {k: [Version(texts, is_new=False)] for k, texts in state.items()}
    for entries in transactions:
        for entry in entries:
            _apply(queues, entry, key, whole=whole)
        # A transaction ends with one row a key; gaps in the log may leave more: the last counts.
        queues = {
            k: [Version(queue[-1].texts, is_new=False)] for k, queue in queues.items() if queue
        }
    return {k: queue[-1].texts for k, queue in queues.items()}


def _apply(queues: dict[Key, list[Version]], entry: Entry, key: list[int], *, whole: bool) -> None:
    if entry["op"] == "truncate":
        queues.clear()
        return
    values, old = entry["values"], entry["old_values"]
    gone = None
    if entry["op"] != "insert":
        image = old if old is not None else values
        gone = _depart(queues.setdefault(_key(image, key), []), old if whole else None)
    if values is None:
        return
    texts = list(values)
    for i in entry["unchanged"] or ():
        texts[i] = old[i] if whole else (gone.texts[i] if gone else HOLE)
    queues.setdefault(_key(texts, key), []).append(Version(texts))


def _depart(queue: list[Version], image: Texts | None) -> Version | None:
    chosen = queue[0] if queue else None
    if image is not None:
        same = [v for v in queue if v.is_new and v.texts == image]
        before = [v for v in queue if not v.is_new]
        chosen = next(iter(same or before), None)
    if chosen is not None:
        queue.remove(chosen)
    return chosen


def _key(texts: Texts, key: list[int]) -> Key:
    return tuple(str(texts[i]) for i in key)
