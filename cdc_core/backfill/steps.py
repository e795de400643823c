"""The steps of a backfill as messages in the source's WAL, so that the log has them in its order.

A message names things and carries none: what a step brings (a chunk's rows, the bounds of a sweep)
lies in the spool, which only we may read. So a user of the database who writes such a message can
bring nothing into the log and remove nothing from it.
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
# Enough for two names of 63 quotation marks, each of them doubled.
_MOST_TABLE_LETTERS = 300


@dataclass(frozen=True, slots=True)
class Begin:
    """From here on the keys of a table's changes are remembered, under a new `memory`."""

    backfill: str
    memory: str
    table: str


@dataclass(frozen=True, slots=True)
class Alive:
    """The worker's sign of life: capture keeps the memory if it has it, and never makes one."""

    backfill: str
    memory: str


@dataclass(frozen=True, slots=True)
class Watermark:
    """The high watermark of one attempt at a chunk, written after its rows were read.

    `snapshot` is what the rows were read by; `oldest` sees only what every open read of the
    backfill sees.
    """

    backfill: str
    memory: str
    chunk: int
    attempt: int
    snapshot: Snapshot
    oldest: Snapshot


@dataclass(frozen=True, slots=True)
class Sweep:
    """What the backfill did not bring, and nothing changed since it began, is gone."""

    backfill: str


@dataclass(frozen=True, slots=True)
class End:
    """Nothing needs to be remembered any more under a memory."""

    backfill: str
    memory: str


Step: TypeAlias = Begin | Alive | Watermark | Sweep | End
_KINDS: dict[str, type[Step]] = {
    "begin": Begin,
    "alive": Alive,
    "watermark": Watermark,
    "sweep": Sweep,
    "end": End,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def format_step(step: Step) -> str:
    """The message of a step, as JSON."""
    values: dict[str, Any] = {"step": _NAMES[type(step)]}
    values |= {field.name: getattr(step, field.name) for field in fields(step)}
    if isinstance(step, Watermark):
        values |= {"snapshot": str(step.snapshot), "oldest": str(step.oldest)}
    return json.dumps(values)


def parse_step(fields: Fields) -> Step | None:
    """The step that a message of ours is; None for any other, or one that is not well formed."""
    values: dict[str, Any] = dict(fields)
    try:
        kind = _KINDS[values.pop("step")]
        if kind is Watermark:
            values |= {name: Snapshot.parse(values[name]) for name in ("snapshot", "oldest")}
        step = kind(**values)
    except (ValueError, KeyError, TypeError):
        return None
    return step if _is_well_formed(step) else None


def _is_well_formed(step: Step) -> bool:
    ids = [step.backfill] + ([] if isinstance(step, Sweep) else [step.memory])
    if not all(isinstance(one, str) and _ID.match(one) for one in ids):
        return False
    if isinstance(step, Begin):
        return _is_table(step.table)
    if isinstance(step, Watermark):
        numbers = (step.chunk, step.attempt)
        return all(type(number) is int and 0 <= number < 1 << 31 for number in numbers)
    return True


def _is_table(text: object) -> bool:
    """Whether a text is a quoted table name, spelled as Walgate writes it."""
    if not isinstance(text, str) or len(text) > _MOST_TABLE_LETTERS:
        return False
    try:
        return str(TableName.parse(text)) == text
    except ValueError:
        return False
