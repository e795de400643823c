"""Walks a table's relation announcements through a log range, in the order of the log.

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

# Makes a query of entries. To make one costs more than to merge a few entries.
EntriesQuery: TypeAlias = Callable[[], DataFrame]
Schema = TypeVar("Schema")


@dataclass(frozen=True, slots=True)
class Walked(Generic[Schema]):
    """The schemas that a table took, each from a position on; and why it halted, if it did.

    `refused` has the first position that the table cannot follow.
    """

    steps: tuple[tuple[Position, Schema], ...]
    refused: tuple[Position, Halt] | None


def walk_announcements(  # noqa: PLR0917 - What is walked, from where, and how.
    read: EntriesQuery,
    table: TableName,
    summaries: Sequence[RangeSummary],
    relations: Mapping[int, Relation],
    before: Schema | None,
    evolve: Callable[[Schema | None, Relation], Schema | Halt],
) -> Walked[Schema]:
    """Walk the announcements by position, to the last or to the first that halts the table.

    `evolve` returns the schema that a table with a schema takes by an announcement. `read` is
    called only if the summaries are not enough.
    """
    steps: list[tuple[Position, Schema]] = []
    schema = before
    while True:
        here = steps[-1][0] if steps else None
        found: list[tuple[Position, Schema | Halt]] = []
        for version, relation in relations.items():
            next_schema = evolve(schema, relation)
            own = [summary for summary in summaries if summary.relation_version == version]
            if next_schema == schema or not own:
                continue
            first = min(summary.first for summary in own)
            if here is None or first > here:
                found.append((first, next_schema))
            elif max(summary.last for summary in own) > here:
                found.append((find_first(read(), str(table), [version], here), next_schema))
        if not found:
            return Walked(tuple(steps), None)
        position, next_schema = min(found, key=lambda step: step[0])
        if isinstance(next_schema, Halt):
            return Walked(tuple(steps), (position, next_schema))
        schema = next_schema
        steps.append((position, next_schema))
