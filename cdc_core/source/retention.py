"""How much WAL a slot retains, what budget it has, and when the budget will be used up.

The budget is the configured one, else the server's limit. A slot past the server's limit is lost,
so the nearer of the two limits counts.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import psycopg

from cdc_core.quantities import format_size
from cdc_core.settings import SourceSettings
from cdc_core.source.connection import source_errors
from cdc_core.source.slot import Slot, read_slot
from cdc_core.vocabulary import Lsn

DEFAULT_SLOT_BUDGET = 10 << 30
# Percent of the budget at which Walgate reports the slot; each level is more urgent.
LEVELS = (50, 75, 90)
# Growth is measured over this time: recent, but long enough to even out some seconds.
_WINDOW_S = 60.0
_SHORTEST_WINDOW_S = 0.5
_SECOND_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Retention:
    """The WAL that a slot which is not lost retains at one moment.

    `safe_wal_size` is what may be written before the server gives up the slot; None if the server
    sets no limit. `inactive_seconds` is the time since the slot was last in use; None if it is in
    use or the server (before 17) does not report it. `confirmed` is the slot's confirmed flush LSN.
    Units: bytes and seconds.
    """

    slot: str
    retained_bytes: int
    budget_bytes: int
    wal_status: str | None
    safe_wal_size: int | None
    inactive_seconds: float | None
    confirmed: Lsn | None = None

    @property
    def left_bytes(self) -> int:
        """How many more bytes of WAL may be written."""
        left = self.budget_bytes - self.retained_bytes
        return max(0, left if self.safe_wal_size is None else min(left, self.safe_wal_size))

    @property
    def used_percent(self) -> float:
        """The percentage used of what the slot may retain."""
        whole = self.retained_bytes + self.left_bytes
        return round(100 * self.retained_bytes / min(whole, self.budget_bytes), 1) if whole else 100

    @property
    def level(self) -> int:
        """The highest of `LEVELS` that is reached; 0 if none is."""
        return max((level for level in LEVELS if self.used_percent >= level), default=0)

    def seconds_left(self, growth: float | None) -> float | None:
        """Seconds until the rest is used up at `growth` bytes a second; None if it never is."""
        if not self.left_bytes:
            return 0.0
        return None if growth is None or growth <= 0 else round(self.left_bytes / growth, 1)

    def describe(self, growth: float | None) -> dict[str, object]:
        """Everything that is known, as the fields of a log line or of metadata."""
        described: dict[str, object] = {
            "slot": self.slot,
            "retained_bytes": self.retained_bytes,
            "budget_bytes": self.budget_bytes,
            "budget_used_percent": self.used_percent,
            "wal_status": self.wal_status,
            "safe_wal_size": self.safe_wal_size,
            "inactive_seconds": self.inactive_seconds,
            "growth_bytes_per_second": None if growth is None else round(growth),
            "seconds_left": self.seconds_left(growth),
        }
        return {name: value for name, value in described.items() if value is not None}

    def explain(self, growth: float | None) -> str:
        """The retained bytes, the used percentage and the time left, in words."""
        text = f"{format_size(self.retained_bytes)} retained, {self.used_percent:g} % of the budget"
        seconds = self.seconds_left(growth)
        if seconds is not None:
            text += f", 100 % in {format_span(seconds)} at the present rate"
        return text


class Growth:
    """Measures how fast retained WAL grew over the last minute, from samples."""

    def __init__(self) -> None:
        """Start without a sample."""
        self._looks: deque[tuple[float, int]] = deque()

    def add(self, at_s: float, retained_bytes: int) -> None:
        """Add a sample; `at_s` is the time of any clock that only goes forward."""
        self._looks.append((at_s, retained_bytes))
        while len(self._looks) > 1 and self._looks[1][0] <= at_s - _WINDOW_S:
            self._looks.popleft()

    def look(self, slot: Slot) -> float | None:
        """Add a sample of the slot, taken now, and return the rate."""
        if slot.retained_bytes is not None:
            self.add(time.monotonic(), slot.retained_bytes)
        return self.rate

    @property
    def rate(self) -> float | None:
        """The growth in bytes a second; None until two samples are far enough apart."""
        if not self._looks:
            return None
        (first_at, first), (last_at, last) = self._looks[0], self._looks[-1]
        seconds = last_at - first_at
        return (last - first) / seconds if seconds >= _SHORTEST_WINDOW_S else None


def measure_growth(connection: psycopg.Connection, slot: Slot) -> float | None:
    """Measure the growth in bytes a second from two samples; for a caller without earlier ones.

    Waits between the samples. None if the slot is gone. Raises: SourceError.
    """
    growth = Growth()
    growth.look(slot)
    time.sleep(_SECOND_LOOK_S)
    again = read_slot(connection, slot.name)
    return None if again is None else growth.look(again)


def choose_budget(source: SourceSettings, wal_limit: int | None) -> int:
    """Choose the bytes of WAL that a slot may keep, if the server limits them to `wal_limit`."""
    return source.slot_budget or wal_limit or DEFAULT_SLOT_BUDGET


def read_wal_limit(connection: psycopg.Connection) -> int | None:
    """Read how many bytes of WAL the server lets a slot keep; None without a limit.

    Raises: SourceError.
    """
    with source_errors("read max_slot_wal_keep_size"):
        row = connection.execute(
            "select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'"
        ).fetchone()
    return None if row is None or row[0] < 0 else int(row[0]) << 20


def read_slot_budget(connection: psycopg.Connection, source: SourceSettings) -> int:
    """Read the bytes of WAL that the slot may keep.

    The configured budget, else the server's limit, else 10 GiB. Raises: SourceError.
    """
    return choose_budget(source, read_wal_limit(connection))


def read_retention(connection: psycopg.Connection, source: SourceSettings) -> Retention | None:
    """Read what the slot retains now; None if it is missing or lost, or the server is a standby.

    Raises: SourceError.
    """
    slot = read_slot(connection, source.slot)
    budget = read_slot_budget(connection, source)
    return None if slot is None else find_retention(slot, budget)


def find_retention(slot: Slot, budget: int) -> Retention | None:
    """Compute what the slot retains; None if it is lost or the server is a standby."""
    if slot.is_lost or slot.retained_bytes is None:
        return None
    return Retention(
        slot=slot.name,
        retained_bytes=slot.retained_bytes,
        budget_bytes=budget,
        wal_status=slot.wal_status,
        safe_wal_size=slot.safe_wal_size,
        inactive_seconds=slot.inactive_seconds,
        confirmed=slot.confirmed_flush,
    )


def format_span(seconds: float) -> str:
    """Format a duration in the unit that a person would use: `40 s`, `12 min`, `3.5 h`, `6 d`."""
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"
