"""Reads rows again that lack a value in the log, before a backfill is done."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from cdc_core.backfill.incomplete import Move, find_incomplete
from cdc_core.backfill.plan import Plan
from cdc_core.backfill.reading import Wanted
from cdc_core.backfill.results import Dropped, find_dropped
from cdc_core.errors import Retry, SourceError
from cdc_core.spooled import WHOLE, Key
from cdc_core.staging.backfills import Begun
from cdc_core.staging.tail import read_marks
from cdc_core.staging.unsent import read_unsent
from cdc_core.vocabulary import TableName

# Rounds. A row that changes several times a second may change each time that it is read again.
_MOST_ROUNDS = 10
# One statement names them.
KEYS_AT_ONCE = 1000
# The rows of a chunk that is read again: the sooner it is read, the fewer change meanwhile.
_ROWS_AGAIN = 1000

# Reads what a plan says under an id of its own, so that it counts for no other backfill.
ReadBeside: TypeAlias = Callable[[str, Wanted, Plan], None]

_logger = logging.getLogger("walgate.backfill")


def complete_rows(
    root: Path,
    begun: Begun,
    plan: Plan,
    wanted: Wanted,
    *,
    has_plain_key: bool,
    read: ReadBeside,
    hold: Callable[[str], None],
) -> None:
    """Read rows that lack a value in the log again, in rounds, until no row lacks one.

    It reads them by key. If the lake hashes the key, it reads the ranges of `plan`, which has read
    them, in small chunks.

    A backfill is not done while rows still change after `_MOST_ROUNDS` rounds: the table may have
    values of theirs that are older than the backfill. It ends with a SourceError, and goes on
    later. If the lake hashes the key, the next run would read the whole table: so this calls `hold`
    with the reason before each further round; `hold` waits.
    Raises: SourceError, StagingError, and what `read` and `hold` raise.
    """
    name, since = begun.id, None
    read_before: frozenset[Key] | None = None
    for number in itertools.count():
        dropped = find_dropped(read_marks(root, begun.start), name)
        unsent = read_unsent(root, begun.table, begun.start, dropped.keys)
        moves = [Move(one.position, one.old, one.key) for one in unsent if one.old is not None]
        updated = {one.key for one in unsent}.intersection(dropped.keys)
        found = find_incomplete(updated, moves, read_before=read_before, since=since)
        if not found:
            return
        if number >= _MOST_ROUNDS:
            error = _rows_keep_changing(begun.table, len(found), rounds=number)
            if has_plain_key:
                raise error
            hold(error.message)
        fields = {"table": str(begun.table), "rows": len(found)}
        _logger.info("rows read again", extra={"fields": fields})
        name, read_before, since = uuid.uuid4().hex, found, dropped.through
        if has_plain_key:
            # With a condition or a range, a row outside of it would look deleted.
            plan = Plan.of_keys(sorted(found), at_once=KEYS_AT_ONCE)
            read(name, replace(wanted, scope=WHOLE), plan)
        elif (ranges := _plan_ranges(found, dropped, plan)) is not None:
            plan = ranges
            read(name, replace(wanted, chunk_rows=min(wanted.chunk_rows, _ROWS_AGAIN)), plan)
        else:
            plan = Plan()
            read(name, wanted, plan)


def _plan_ranges(found: frozenset[Key], dropped: Dropped, plan: Plan) -> Plan | None:
    """Plan to read again the ranges that have some rows; None if it is not known which have them.

    A row whose key changed may be in any range.
    """
    numbers = dropped.find_chunks(found)
    ranges = [plan.taken[number] for number in numbers if number in plan.taken]
    is_known = found <= dropped.keys and len(ranges) == len(numbers)
    return Plan.of_ranges(ranges) if is_known else None


def _rows_keep_changing(table: TableName, rows: int, *, rounds: int) -> SourceError:
    return SourceError(
        f"{rows} rows of {table} changed each time that they were read, {rounds} times",
        fix="run the backfill again, best when they change less often: it goes on where it was",
        retry=Retry.LATER,
    )
