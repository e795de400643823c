"""Messages of ours as the stream brings them, told from all others by prefix and content.

Every role of the database may write messages, under our prefix too. Only what is exactly one of
ours enters the log, and in our own spelling: nothing of a message's text is ever copied.
"""

from __future__ import annotations

import json
import re

from cdc_core.backfill.steps import Step, format_step, parse_step
from cdc_core.protocol.flat_json import parse_fields
from cdc_core.protocol.messages import LogicalMessage
from cdc_core.vocabulary import MARK_PREFIX

_PREFIX = MARK_PREFIX.encode()
# An id that capture waits for, or the name of a command that only wants the WAL to move.
_NAME = re.compile(r"[A-Za-z0-9 _-]{1,64}\Z")
_KINDS = ({"mark"}, {"by"})


def is_ours(message: LogicalMessage) -> bool:
    """Whether a message claims to be one of ours, by its prefix; it is part of a transaction."""
    return message.transactional and message.prefix == _PREFIX


def read_mark(message: LogicalMessage) -> str | Step | None:
    """A step of a backfill, or what any other mark says; None where it is not one of ours."""
    fields = parse_fields(message.content) if is_ours(message) else None
    if fields is None:
        return None
    if "step" in fields:
        return parse_step(fields)
    if set(fields) not in _KINDS:
        return None
    ((name, value),) = fields.items()
    return json.dumps({name: value}) if isinstance(value, str) and _NAME.match(value) else None


def describe_mark(mark: str | Step) -> str:
    """The detail of a mark in the log."""
    return mark if isinstance(mark, str) else format_step(mark)


def format_mark(name: str) -> str:
    """The message, and the detail in the log, of the mark that capture knows by this name."""
    return json.dumps({"mark": name})
