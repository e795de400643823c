"""Rules of a random table, and what its rows look like in the lake under them."""

from __future__ import annotations

import hashlib
import hmac
from enum import Enum

from tests.end_to_end.random_source import Snapshot

# A column that every random table has.
RULED = "v"
KEYS = ("0" * 64, "1" * 64)


class Rule(Enum):
    """What is done to the ruled column."""

    NONE = ""
    HASH = f'hash = ["{RULED}"]'
    EXCLUDE = f'exclude = ["{RULED}"]'


def conceal(truth: Snapshot, rule: Rule, key: str) -> Snapshot:
    """The rows as the lake must have them."""
    names = [name for name, _ in truth.columns]
    if rule is Rule.NONE or RULED not in names:
        return truth
    at = names.index(RULED)
    if rule is Rule.EXCLUDE:
        columns = (*truth.columns[:at], *truth.columns[at + 1 :])
        rows = [(*row[:at], *row[at + 1 :]) for row in truth.rows]
    else:
        columns = (*truth.columns[:at], (RULED, "text"), *truth.columns[at + 1 :])
        rows = [(*row[:at], _hash(row[at], key), *row[at + 1 :]) for row in truth.rows]
    return Snapshot(columns, tuple(sorted(rows, key=repr)))


def _hash(text: str | None, key: str) -> str | None:
    if text is None:
        return None
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()
