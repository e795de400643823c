"""The steps of a backfill: marks that a worker writes into the WAL, which gives them their order.

A mark only names data. The data itself (a chunk's rows, the bounds of a sweep) is in the spool,
which only Walgate may read. So a user of the database who writes such a mark can neither bring rows
into the log nor have rows removed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

from cdc_core.backfill.visibility import Snapshot
from cdc_core.protocol.flat_json import Fields
from cdc_core.vocabulary import TableName

_ID = re.compile(r"[0-9a-f]{32}\Z")
# Enough for two names of 63 quotation marks each, if every quotation mark is doubled.
_MAX_TABLE_LETTERS = 300


@dataclass(frozen=True, slots=True)
class BeginBackfill:
    """Capture remembers the changed keys of a table from here on, under the new id `memory`."""

    backfill: str
    memory: str
    table: str


@dataclass(frozen=True, slots=True)
class KeepChangedKeys:
    """The worker's sign of life: capture keeps the changed keys if it has them; it begins none."""

    backfill: str
    memory: str


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of one attempt at a chunk; the worker writes it after it has read the rows.

    `snapshot` is the one that the rows were read in. `oldest` sees only what every open read of the
    backfill sees. `has_more` is 1 if the plan had another range to read, and 0 if it had none, so
    that the worker waits for the log. It is a number because a mark holds no booleans.
    """

    backfill: str
    memory: str
    chunk: int
    attempt: int
    snapshot: Snapshot
    oldest: Snapshot
    has_more: int


@dataclass(frozen=True, slots=True)
class RequestSweep:
    """Capture stages the sweep from the spool; it removes rows that the backfill did not find."""

    backfill: str


@dataclass(frozen=True, slots=True)
class EndBackfill:
    """Capture forgets the changed keys of the id `memory`."""

    backfill: str
    memory: str


BackfillMark: TypeAlias = BeginBackfill | KeepChangedKeys | Watermark | RequestSweep | EndBackfill
_KINDS: dict[str, type[BackfillMark]] = {
    "begin": BeginBackfill,
    "alive": KeepChangedKeys,
    "watermark": Watermark,
    "sweep": RequestSweep,
    "end": EndBackfill,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def format_backfill_mark(step: BackfillMark) -> str:
    """The text of a step's mark, as JSON."""
    values: dict[str, Any] = {"step": _NAMES[type(step)]}
    values |= {field.name: getattr(step, field.name) for field in fields(step)}
    if isinstance(step, Watermark):
        values |= {"snapshot": str(step.snapshot), "oldest": str(step.oldest)}
    return json.dumps(values)


def parse_backfill_mark(fields: Fields) -> BackfillMark | None:
    """The step with these fields; None if the fields do not form a step."""
    values: dict[str, Any] = dict(fields)
    try:
        kind = _KINDS[values.pop("step")]
        if kind is Watermark:
            values |= {name: Snapshot.parse(values[name]) for name in ("snapshot", "oldest")}
        step = kind(**values)
    except (ValueError, KeyError, TypeError):
        return None
    return step if _is_well_formed(step) else None


def _is_well_formed(step: BackfillMark) -> bool:
    ids = [step.backfill] + ([] if isinstance(step, RequestSweep) else [step.memory])
    if not all(isinstance(one, str) and _ID.match(one) for one in ids):
        return False
    if isinstance(step, BeginBackfill):
        return _is_table(step.table)
    if isinstance(step, Watermark):
        numbers = (step.chunk, step.attempt)
        is_numbered = all(type(number) is int and 0 <= number < 1 << 31 for number in numbers)
        return is_numbered and type(step.has_more) is int and step.has_more in {0, 1}
    return True


def _is_table(text: object) -> bool:
    """Whether a text is a quoted table name, spelled as Walgate writes it."""
    if not isinstance(text, str) or len(text) > _MAX_TABLE_LETTERS:
        return False
    try:
        return str(TableName.parse(text)) == text
    except ValueError:
        return False
