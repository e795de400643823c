"""Finds rows that lack a value in the log after a backfill has read its chunks. Pure.

An update does not send a TOASTed value that it leaves unchanged. The log has that value only if
an earlier entry brought the whole row. Since the backfill began, such an entry is missing for two
kinds of rows: rows that capture dropped from a chunk because such an update came first, and rows
that moved to another key before a chunk had read them. The backfill reads both again, until none
is left.
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
    """Find the keys of all rows that may lack a value in the log; some of them may lack none.

    Each pass reads the keys that the pass before left incomplete. The backfill itself is the first
    pass. `updated`: keys that capture dropped from the chunks of the last pass, if an update of
    them did not send every value. `moves`: in order of position. `read_before`: the keys that the
    last pass read; None if the last pass was the first, and then every move counts. After a later
    pass, a move counts only if it came after `since`, and from a key in `read_before` or from a key
    that counts already. `since`: the position of the last chunk of the pass before the last.
    """
    incomplete = set(updated) if read_before is None else set(updated).intersection(read_before)
    for move in moves:
        is_new = since is None or move.position > since
        may_lack = read_before is None or move.old in read_before or move.old in incomplete
        if is_new and may_lack:
            incomplete.add(move.new)
    return frozenset(incomplete)
