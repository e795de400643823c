"""Plans which entries of a log range a target takes, in which columns, and why it halts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.targets import Target
from cdc_core.vocabulary import Operation, Position, Relation
from spark_jobs.append.entries import make_rows
from spark_jobs.append.evolution import NO_COLUMNS, EntrySchema, evolve_entries
from spark_jobs.append.reshaping import reshape_entries
from spark_jobs.fold.announcements import EntriesQuery, Walked, walk_announcements
from spark_jobs.fold.plan import as_query, describe_unknown, find_relation, take_earlier
from spark_jobs.lake.lake import Bound
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.log.reading import POSITION, is_after, write_position
from spark_jobs.schema.evolution import Choose, Halt, TableSchema

_KNOWN_OPERATIONS = frozenset(Operation) - {Operation.MARK}


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """The entries of a log range, up to `upper`, that a target takes; and its halt, if any.

    `before` is the schema of the target; None if it has none yet. `steps` are the schemas that it
    takes, each from a position on.
    """

    target: Target
    upper: Bound
    before: TableSchema | None
    steps: tuple[tuple[Position, EntrySchema], ...]
    halt: Halt | None
    read: EntriesQuery
    summaries: tuple[RangeSummary, ...]
    relations: Mapping[int, Relation]

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no entry."""
        return not self.summaries

    @property
    def schema(self) -> TableSchema:
        """The schema of the target after the plan."""
        return self._first.table if not self.steps else self.steps[-1][1].table

    @property
    def keeps_rows(self) -> bool:
        """Whether the stored rows stay as they are, perhaps with more columns."""
        before = self._first.table
        return before == self.schema.take(len(before.columns)) and not any(
            schema.hidden for _, schema in self.steps
        )

    def make_rows(self) -> DataFrame:
        """The rows of the entries in log order, in the schema after the plan."""
        # A repeated position is the same entry.
        entries = self.read().dropDuplicates([*POSITION])
        if not self.steps:
            return _sort(make_rows(entries, self._first, {}))
        rows: DataFrame | None = None
        before = self._first
        starts = [position for position, _ in self.steps]
        for n, (start, schema) in enumerate(self.steps):
            part = entries
            if n > 0:
                part = part.where(is_after(start) | (F.struct(*POSITION) == write_position(start)))
            if n + 1 < len(starts):
                part = part.where(F.struct(*POSITION) < write_position(starts[n + 1]))
            made = make_rows(part, schema, self.relations)
            if rows is not None:
                made = reshape_entries(rows, before, schema).unionByName(made)
            rows, before = made, schema
        assert rows is not None
        return _sort(rows)

    def reshape(self, stored: DataFrame) -> DataFrame:
        """The stored rows in the schema after the plan."""
        before = self._first
        for _, schema in self.steps:
            stored, before = reshape_entries(stored, before, schema), schema
        return stored

    @property
    def _first(self) -> EntrySchema:
        return NO_COLUMNS if self.before is None else EntrySchema(self.before)


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
    """Plan which entries of a log range a target takes.

    `summaries` are those of the target's table. `log` makes a query of the range's entries.
    Raises: LakeError if an entry names a relation version that `relations` does not hold.
    """
    table = target.table

    def read() -> DataFrame:
        return log().where(F.col("table") == str(table))

    unknown = [one for one in summaries if one.operation not in _KNOWN_OPERATIONS]
    halt = None
    if unknown:
        first = min(unknown, key=lambda summary: summary.first)
        halt = describe_unknown(first)
        upper, earlier = take_earlier(read(), first.first)
        read = as_query(earlier)
        summaries = summarize(earlier)
    used = {
        summary.relation_version: find_relation(relations, table, summary.relation_version)
        for summary in summaries
        if summary.relation_version is not None
    }
    known = None if before is None else EntrySchema(before)
    evolve = partial(evolve_entries, choose=choose)
    walked = walk_announcements(read, table, summaries, used, known, evolve)
    steps = _join_steps(known or NO_COLUMNS, walked)
    return EntryPlan(target, upper, before, steps, halt, read, tuple(summaries), used)


def _sort(rows: DataFrame) -> DataFrame:
    return rows.orderBy(*(f"_{name}" for name in POSITION))


def _join_steps(
    before: EntrySchema, walked: Walked[EntrySchema]
) -> tuple[tuple[Position, EntrySchema], ...]:
    """The steps of a walk; one that changes no column is joined with the step before it."""
    steps: list[tuple[Position, EntrySchema]] = []
    hidden = len(before.hidden)
    for position, schema in walked.steps:
        own = EntrySchema(schema.table, schema.indexes, schema.hidden[hidden:])
        hidden = len(schema.hidden)
        if steps and steps[-1][1].table == own.table and not own.hidden:
            own = EntrySchema(own.table, own.indexes, steps[-1][1].hidden)
            steps[-1] = (steps[-1][0], own)
        else:
            steps.append((position, own))
    return tuple(steps)
