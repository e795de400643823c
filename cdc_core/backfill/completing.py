"""Before a backfill is done, reads again the rows that lack a value in the log."""

from __future__ import annotations

import itertools
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from cdc_core.backfill.incomplete import Move, find_incomplete
from cdc_core.backfill.plan import Plan
from cdc_core.backfill.request import BackfillRequest
from cdc_core.backfill.results import Dropped, find_dropped
from cdc_core.errors import Retry, SourceError
from cdc_core.lake_storage.place import LakePlace
from cdc_core.spooled import WHOLE, Key
from cdc_core.staging.backfills import Begun
from cdc_core.staging.incomplete_updates import read_unsent
from cdc_core.staging.tail import read_marks
from cdc_core.vocabulary import TableName

# Passes over incomplete rows. A row that changes several times a second may change in each pass.
_MAX_ROUNDS = 10
# The most keys that one SQL statement names.
KEYS_AT_ONCE = 1000
# The most rows of a chunk that is read again. Fewer rows change while a small chunk is read.
_ROWS_AGAIN = 1000

# Reads a plan under a backfill id of its own, so that no other backfill counts its chunks.
ReadUnderOwnId: TypeAlias = Callable[[str, BackfillRequest, Plan], None]

_logger = logging.getLogger("walgate.backfill")


def complete_rows(
    root: LakePlace,
    begun: Begun,
    plan: Plan,
    wanted: BackfillRequest,
    *,
    has_plain_key: bool,
    read: ReadUnderOwnId,
    hold: Callable[[str], None],
) -> None:
    """Read again the rows that lack a value in the log, in passes, until no row lacks one.

    Each pass reads the rows by key. If a key column is hashed, a pass reads the ranges of `plan`
    that have the rows, in small chunks. If these ranges are unknown, a pass reads all of `wanted`.

    If rows still lack a value after `_MAX_ROUNDS` passes, the backfill is not done: the table may
    have values of these rows that are older than the backfill. The result is a SourceError, and a
    later run resumes the backfill. But if a key column is hashed, a later run would read the whole
    table. Then each further pass first calls `hold` with the reason; `hold` waits.
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
        if number >= _MAX_ROUNDS:
            error = _rows_keep_changing(begun.table, len(found), rounds=number)
            if has_plain_key:
                raise error
            hold(error.message)
        fields = {"table": str(begun.table), "rows": len(found)}
        _logger.info("rows read again", extra={"fields": fields})
        name, read_before, since = uuid.uuid4().hex, found, dropped.through
        if has_plain_key:
            # Use the whole table: a row outside a condition or a range would look deleted.
            plan = Plan.of_keys(sorted(found), at_once=KEYS_AT_ONCE)
            read(name, replace(wanted, scope=WHOLE), plan)
        elif (ranges := _plan_ranges(found, dropped, plan)) is not None:
            plan = ranges
            read(name, replace(wanted, chunk_rows=min(wanted.chunk_rows, _ROWS_AGAIN)), plan)
        else:
            plan = Plan()
            read(name, wanted, plan)


def _plan_ranges(found: frozenset[Key], dropped: Dropped, plan: Plan) -> Plan | None:
    """Plan to read again the ranges that have the rows of `found`; None if these are not known.

    A row whose key changed may be in any range.
    """
    numbers = dropped.find_chunks(found)
    ranges = [plan.taken[number] for number in numbers if number in plan.taken]
    is_known = found <= dropped.keys and len(ranges) == len(numbers)
    return Plan.of_ranges(ranges) if is_known else None


def _rows_keep_changing(table: TableName, rows: int, *, rounds: int) -> SourceError:
    return SourceError(
        f"{rows} rows of {table} changed each time that they were read, {rounds} times",
        fix="run the backfill again when they change less often: it resumes where it stopped",
        retry=Retry.LATER,
    )
