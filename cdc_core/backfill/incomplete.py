"""Which rows the log lacks a value of after a backfill has read its chunks. Pure.

An update that leaves a TOASTed value as it was does not send it. The log has that value only if
an earlier entry brought the whole row. Since the backfill began, such an entry is missing for two
kinds of rows: those that a chunk dropped because such an update came first, and those that moved
to another key before a chunk had read them. Both are read again, by key, until none is left.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from cdc_core.spooled import Key
from cdc_core.vocabulary import Position


@dataclass(frozen=True, slots=True)
class Move:
    """An update that changed a row's key and did not send every value."""

    position: Position
    old: Key
    new: Key


def find_incomplete(
    updated: Collection[Key],
    moves: Sequence[Move],
    *,
    read_before: Collection[Key] | None,
    since: Position | None,
) -> frozenset[Key]:
    """The keys whose row the log may lack a value of; never fewer than it does.

    `updated` are keys that the last round's chunks dropped and that have an update which did not
    send every value; `moves` are in order. `read_before` are the keys for which the last round was
    made, None if that was the backfill itself: then every row that moved counts as not read yet.
    After later rounds, only a move from one of these keys after `since` counts, the position of
    the last chunk of the round before.
    """
    incomplete = set(updated) if read_before is None else set(updated).intersection(read_before)
    for move in moves:
        is_new = since is None or move.position > since
        may_lack = read_before is None or move.old in read_before or move.old in incomplete
        if is_new and may_lack:
            incomplete.add(move.new)
    return frozenset(incomplete)
