"""Follows a table's relation announcements through a log range, in the order of the log.

A relation version comes again if an ALTER was undone, so the order of first entries is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from pyspark.sql import DataFrame

from cdc_core.vocabulary import Position, Relation, TableName
from spark_jobs.log.ranges import RangeSummary
from spark_jobs.log.reading import find_first
from spark_jobs.schema.evolution import Halt

# Makes a query of entries. That costs more than to merge a few, so callers make it when needed.
EntriesQuery: TypeAlias = Callable[[], DataFrame]
Shape = TypeVar("Shape")


@dataclass(frozen=True, slots=True)
class Followed(Generic[Shape]):
    """The shapes that a table took, each from a position on, and why it halted, if it did.

    `refused` has the first position that the table cannot follow.
    """

    steps: tuple[tuple[Position, Shape], ...]
    refused: tuple[Position, Halt] | None


def follow_announcements(  # noqa: PLR0917 - What is followed, from where, and how.
    read: EntriesQuery,
    table: TableName,
    summaries: Sequence[RangeSummary],
    relations: Mapping[int, Relation],
    before: Shape | None,
    follow: Callable[[Shape | None, Relation], Shape | Halt],
) -> Followed[Shape]:
    """Follow the announcements by position, to the last or to the first that halts the table.

    `follow` returns the shape that a table with a shape takes by an announcement. `read` is called
    only if the summaries are not enough.
    """
    steps: list[tuple[Position, Shape]] = []
    shape = before
    while True:
        here = steps[-1][0] if steps else None
        found: list[tuple[Position, Shape | Halt]] = []
        for version, relation in relations.items():
            following = follow(shape, relation)
            own = [summary for summary in summaries if summary.relation_version == version]
            if following == shape or not own:
                continue
            first = min(summary.first for summary in own)
            if here is None or first > here:
                found.append((first, following))
            elif max(summary.last for summary in own) > here:
                found.append((find_first(read(), str(table), [version], here), following))
        if not found:
            return Followed(tuple(steps), None)
        position, following = min(found, key=lambda step: step[0])
        if isinstance(following, Halt):
            return Followed(tuple(steps), (position, following))
        shape = following
        steps.append((position, following))
