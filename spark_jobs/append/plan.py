"""Plans how far a target of entries can follow a log range, in which columns, and why it halts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.targets import Target
from cdc_core.vocabulary import Operation, Position, Relation
from spark_jobs.append.entries import make_rows
from spark_jobs.append.shape import EntryShape, follow
from spark_jobs.fold.announcements import EntriesQuery, Followed, follow_announcements
from spark_jobs.fold.plan import as_query, describe_unknown, find_relation, take_earlier
from spark_jobs.lake.lake import Bound
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.schema.evolution import Choose, Halt, TableSchema

_KNOWN_OPERATIONS = frozenset(Operation) - {Operation.MARK}


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The entries of a log range, up to `upper`, that a target can take; and its halt, if any.

    `shape` is None if the target has no entry yet, and takes none. `forgotten` has, by the index of
    a column, the position below which no entry keeps its value.
    """

    target: Target
    upper: Bound
    before: TableSchema | None
    shape: EntryShape | None
    forgotten: Mapping[int, Position]
    halt: Halt | None
    read: EntriesQuery
    summaries: tuple[RangeSummary, ...]
    relations: Mapping[int, Relation]

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no entry."""
        return not self.summaries

    def make_rows(self) -> DataFrame:
        """The rows of the entries."""
        assert self.shape is not None
        return make_rows(self.read(), self.shape, self.relations, self.forgotten)


def plan_entries(
    log: EntriesQuery,
    target: Target,
    summaries: list[RangeSummary],
    *,
    before: TableSchema | None,
    relations: Mapping[int, Relation],
    upper: Bound,
    choose: Choose,
) -> EntryPlan:
    """Plan how far a target can follow a log range.

    `summaries` are those of the target's table. `log` makes a query of the range's entries.
    Raises: LakeError if a change names a relation version that `relations` does not hold.
    """
    table = target.table

    def read() -> DataFrame:
        return log().where(F.col("table") == str(table))

    used = {
        summary.relation_version: find_relation(relations, table, summary.relation_version)
        for summary in summaries
        if summary.relation_version is not None
    }
    known = None if before is None else EntryShape(before)
    step = partial(_follow, choose=choose)
    followed = follow_announcements(read, table, summaries, used, known, step)
    refused = followed.refused
    for summary in summaries:
        is_known = summary.operation in _KNOWN_OPERATIONS
        if not is_known and (refused is None or summary.first < refused[0]):
            refused = (summary.first, describe_unknown(summary))
    halt = None
    if refused is not None:
        position, halt = refused
        upper, earlier = take_earlier(read(), position)
        read = as_query(earlier)
        summaries = summarize(earlier)
        versions = {summary.relation_version for summary in summaries}
        used = {version: relation for version, relation in used.items() if version in versions}
        followed = follow_announcements(read, table, summaries, used, known, step)
    shape = followed.steps[-1][1] if followed.steps else known
    if shape is None and summaries:
        # No entry so far says which columns the table has.
        shape = EntryShape(TableSchema(0, (), (), ()))
    return EntryPlan(
        target,
        upper,
        before,
        shape,
        _place_forgotten(followed),
        halt,
        read,
        tuple(summaries),
        used,
    )


def _follow(shape: EntryShape | None, relation: Relation, *, choose: Choose) -> EntryShape | Halt:
    return follow(shape, relation, choose)


def _place_forgotten(followed: Followed[EntryShape]) -> dict[int, Position]:
    """The last position at which each column lost its older values."""
    placed: dict[int, Position] = {}
    seen = 0
    for position, shape in followed.steps:
        placed |= dict.fromkeys(shape.forgotten[seen:], position)
        seen = len(shape.forgotten)
    return placed
