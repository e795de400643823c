"""Recognizes Walgate's own messages in the stream by their prefix and content.

Every role of the database may write messages, also with this prefix. Only a message that has
exactly one of Walgate's forms enters the log. Capture formats the detail again, and copies no text
of the message.
"""

from __future__ import annotations

import json
import re

from cdc_core.backfill.marks import BackfillMark, format_backfill_mark, parse_backfill_mark
from cdc_core.protocol.flat_json import parse_fields
from cdc_core.protocol.messages import LogicalMessage
from cdc_core.vocabulary import MARK_PREFIX

_PREFIX = MARK_PREFIX.encode()
# The id of a mark that capture waits for, or the name of a command that writes a mark.
_NAME = re.compile(r"[A-Za-z0-9 _-]{1,64}\Z")
_KINDS = ({"mark"}, {"by"})


def is_ours(message: LogicalMessage) -> bool:
    """Whether a message has Walgate's prefix and is transactional; its content may be foreign."""
    return message.transactional and message.prefix == _PREFIX


def read_mark(message: LogicalMessage) -> str | BackfillMark | None:
    """A step of a backfill, or the detail of another mark; None if the message is foreign."""
    fields = parse_fields(message.content) if is_ours(message) else None
    if fields is None:
        return None
    if "step" in fields:
        return parse_backfill_mark(fields)
    if set(fields) not in _KINDS:
        return None
    ((name, value),) = fields.items()
    return json.dumps({name: value}) if isinstance(value, str) and _NAME.match(value) else None


def describe_mark(mark: str | BackfillMark) -> str:
    """The detail of a mark in the log."""
    return mark if isinstance(mark, str) else format_backfill_mark(mark)


def format_mark(name: str) -> str:
    """The text of a mark by capture; it is both the message and the detail in the log."""
    return json.dumps({"mark": name})
