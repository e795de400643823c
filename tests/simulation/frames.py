"""Entries of the simulated log in the place of a DataFrame, as the plan of a merge uses one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from cdc_core.vocabulary import Position
from spark_jobs.lake.lake import Bound
from spark_jobs.log.ranges import RangeSummary
from tests.simulation.staging import Entry

Condition: TypeAlias = Callable[[Entry], bool]
_AT = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Frame:
    """Some entries, in order of position."""

    entries: tuple[Entry, ...]

    def where(self, condition: Condition) -> Frame:
        """Those of which something is true."""
        return Frame(tuple(entry for entry in self.entries if condition(entry)))

    def unionByName(self, other: Frame) -> Frame:  # noqa: N802 - Spark's name.
        """Those of both."""
        own = {entry.position: entry for entry in (*self.entries, *other.entries)}
        return Frame(tuple(own[position] for position in sorted(own)))

    def select(self, *_: str) -> Frame:
        """The same: a row has all its columns."""
        return self

    def distinct(self) -> Frame:
        """The same: no entry is twice in it."""
        return self

    def collect(self) -> list[dict[str, Any]]:
        """The entries as rows."""
        return [{name: _take(entry, name) for name in _COLUMNS} for entry in self.entries]


class Column:
    """A column in a condition."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        """Whether it is a value."""
        return self._compare(operator.eq, value)

    def __hash__(self) -> int:
        """Goes with equality."""
        return hash(self._name)

    def __lt__(self, value: object) -> Condition:
        """Whether it is below a value."""
        return self._compare(operator.lt, value)

    def __le__(self, value: object) -> Condition:
        """Whether it is not above a value."""
        return self._compare(operator.le, value)

    def isin(self, *values: object) -> Condition:
        """Whether its value is one of some."""
        return lambda entry: _take(entry, self._name) in values

    def _compare(self, compare: Callable[[Any, Any], bool], value: object) -> Condition:
        return lambda entry: compare(_take(entry, self._name), value)


class Functions:
    """What is used of `pyspark.sql.functions` on the way."""

    col = Column


def is_after(position: Position) -> Condition:
    """Whether an entry is above a position."""
    return lambda entry: entry.position > position


def summarize(frame: Frame) -> list[RangeSummary]:
    """What some entries are, one span per table, relation version and operation."""
    return list_summaries(frame.entries)


def list_summaries(entries: Iterable[Entry]) -> list[RangeSummary]:
    """The same of entries by themselves."""
    groups: dict[tuple[str | None, int | None, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.table, entry.version, entry.op), []).append(entry)
    return [
        RangeSummary(
            *of,
            len(own),
            min(entry.position for entry in own),
            max(entry.position for entry in own),
            _AT,
            _AT,
            frozenset(index for entry in own for index in entry.unchanged or ()),
            any(entry.old is not None for entry in own),
        )
        for of, own in groups.items()
    ]


def find_first(frame: Frame, table: str, versions: Iterable[int], after: Position) -> Position:
    """The first position of a table above another, of some relation versions."""
    chosen = set(versions)
    return min(
        entry.position
        for entry in frame.entries
        if entry.table == table and entry.version in chosen and entry.position > after
    )


def is_between(entry: Entry, low: Bound | None, high: Bound) -> bool:
    """Whether an entry is in `(low, high]`, by its end LSN."""
    end = (entry.position.epoch, entry.end_lsn)
    is_above = low is None or end > (low.epoch, int(low.lsn))
    return is_above and end <= (high.epoch, int(high.lsn))


_COLUMNS = ("epoch", "end_lsn", "table", "op", "detail", "relation_version")


def _take(entry: Entry, name: str) -> Any:
    if name == "epoch":
        return entry.position.epoch
    if name == "relation_version":
        return entry.version
    return getattr(entry, name)
