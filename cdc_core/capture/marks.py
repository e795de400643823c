"""Marks as the stream brings them: messages of ours, told from others' by prefix and content."""

from __future__ import annotations

import json

from cdc_core.capture.batches import Entry
from cdc_core.protocol.messages import LogicalMessage
from cdc_core.vocabulary import MARK_PREFIX, Operation


def read_mark(message: LogicalMessage) -> str | None:
    """A mark's content as text; None for a message of others, or one that is not a JSON object."""
    if message.prefix != MARK_PREFIX:
        return None
    try:
        text = message.content.decode("utf-8")
        return text if isinstance(json.loads(text), dict) else None
    except ValueError:
        return None


def mark_id(entry: Entry) -> str | None:
    """The id under which a mark was asked for; None for what is not a mark of a run."""
    if entry.operation is not Operation.MARK or entry.detail is None:
        return None
    mark = json.loads(entry.detail).get("mark")
    return mark if isinstance(mark, str) else None
