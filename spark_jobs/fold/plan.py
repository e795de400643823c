"""The table plan: how far a table can follow a log range, in which schema, and why it halts.

A table halts just before the first transaction that it cannot follow. A merge applies the changes
before the halt; the changes after the halt wait. The halt depends on the log alone, and not on
where rounds begin and end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import Operation, Position, Relation, ReplicaIdentity, TableName
from spark_jobs.fold.announcements import EntriesQuery, walk_announcements
from spark_jobs.fold.steps import take_steps
from spark_jobs.fold.sweeps import Sweep, drop_superseded, find_sweeps
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.log.reading import ROW_OPERATIONS, LogPoint, find_points, is_after
from spark_jobs.pg_types.types import settle_type
from spark_jobs.schema.evolution import Choose, Halt, TableSchema, accept_first, choose_own, evolve

_KNOWN_OPERATIONS = ROW_OPERATIONS | {Operation.TRUNCATE, Operation.SWEEP}


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The changes of a log range, up to `upper`, that a table can follow; and its halt, if any."""

    table: TableName
    upper: Bound
    schema: TableSchema | None  # None if it had none and can follow no change.
    before: TableSchema | None
    halt: Halt | None
    read: EntriesQuery  # Its entries.
    summaries: tuple[RangeSummary, ...]
    relations: Mapping[int, Relation]
    sweeps: tuple[Sweep, ...] = ()  # All, in log order.
    swept: tuple[Sweep, ...] = ()  # Those that no newer one supersedes.
    halted_at: Position | None = None  # The first change that cannot be followed.
    # The schemas that the table takes, each from a position on.
    schemas: tuple[tuple[Position, TableSchema], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no change."""
        return not self.summaries

    @property
    def truncated_at(self) -> Position | None:
        """The position of the last TRUNCATE; None without a TRUNCATE."""
        cuts = [
            summary.last for summary in self.summaries if summary.operation == Operation.TRUNCATE
        ]
        return max(cuts, default=None)

    @property
    def has_moves(self) -> bool:
        """Whether a change may move a row to another key."""
        updates = [summary for summary in self.summaries if summary.operation == Operation.UPDATE]
        return any(summary.has_old_values for summary in updates)

    @property
    def unsent(self) -> frozenset[int]:
        """The columns that some change did not send.

        Under replica identity FULL the old row has every value, so these changes do not count.
        """
        assert self.schema is not None
        found: set[int] = set()
        for summary in self.summaries:
            relation = self.relations.get(summary.relation_version or 0)
            if relation is None or relation.identity is ReplicaIdentity.FULL:
                continue
            found |= summary.unchanged
        return frozenset(found)

    @property
    def has_default_to_apply(self) -> bool:
        """Whether an added column has a default that existing rows must receive."""
        if self.before is None or self.schema is None:
            return False
        younger = self.schema.columns[len(self.before.columns) :]
        return any(column.missing_value is not None for column in younger)

    def has(self, operation: Operation) -> bool:
        """Whether the plan has an entry of an operation."""
        return any(summary.operation == operation for summary in self.summaries)

    def take_steps(self) -> DataFrame:
        """The row changes as steps, without those before the last TRUNCATE."""
        return self._take_steps(None if self.truncated_at is None else is_after(self.truncated_at))

    def take_all_steps(self, *also: str) -> DataFrame:
        """The row changes as steps, also those before a TRUNCATE; with more columns of entries."""
        return self._take_steps(None, *also)

    def list_truncates(self) -> tuple[LogPoint, ...]:
        """Where the table was truncated, in log order."""
        if self.truncated_at is None:
            return ()
        return tuple(sorted({at for at, _ in find_points(self.read(), Operation.TRUNCATE)}))

    def _take_steps(self, chosen: Expression | None, *also: str) -> DataFrame:
        assert self.schema is not None
        entries = self.read().where(F.col("op").isin(*sorted(ROW_OPERATIONS)))
        if chosen is not None:
            entries = entries.where(chosen)
        return take_steps(entries, self.schema, self.relations, has_moves=self.has_moves, also=also)


def plan_table(
    log: EntriesQuery,
    table: TableName,
    summaries: list[RangeSummary],
    *,
    before: TableSchema | None,
    relations: Mapping[int, Relation],
    upper: Bound,
    choose: Choose = choose_own,
) -> TablePlan:
    """Plan how far a table can follow a log range.

    `summaries` are those of this table. `log` makes a query of the range's entries; this function
    calls it only if the summaries are not enough. `choose` returns the type that the settings
    choose for a column.
    Raises: LakeError if a change names a relation version that `relations` does not hold.
    """

    def read() -> DataFrame:
        return log().where(F.col("table") == str(table))

    used = {
        summary.relation_version: find_relation(relations, table, summary.relation_version)
        for summary in summaries
        if summary.relation_version is not None
    }
    evolve_schema = partial(_evolve, choose=choose)
    walked = walk_announcements(read, table, summaries, used, before, evolve_schema)
    schema = walked.steps[-1][1] if walked.steps else before
    refused = walked.refused
    unknown = [summary for summary in summaries if summary.operation not in _KNOWN_OPERATIONS]
    for summary in unknown:
        if refused is None or summary.first < refused[0]:
            refused = (summary.first, describe_unknown(summary))
    if refused is None:
        sweeps = _find_sweeps(read, summaries)
        return TablePlan(
            table,
            upper,
            schema,
            before,
            None,
            read,
            tuple(summaries),
            used,
            sweeps,
            drop_superseded(sweeps),
            schemas=walked.steps,
        )
    position, halt = refused
    upper, earlier = take_earlier(read(), position)
    summaries = summarize(earlier)
    # The relation versions that the table cannot follow would not fit its schema.
    versions = {summary.relation_version for summary in summaries}
    used = {version: relation for version, relation in used.items() if version in versions}
    walked = walk_announcements(as_query(earlier), table, summaries, used, before, evolve_schema)
    schema = walked.steps[-1][1] if walked.steps else before
    sweeps = _find_sweeps(as_query(earlier), summaries)
    return TablePlan(
        table,
        upper,
        schema,
        before,
        halt,
        as_query(earlier),
        tuple(summaries),
        used,
        sweeps,
        drop_superseded(sweeps),
        position,
        walked.steps,
    )


def take_earlier(entries: DataFrame, position: Position) -> tuple[Bound, DataFrame]:
    """The bound below the transaction of a position, and the entries up to this bound."""
    # Every earlier transaction ends at or before the commit record of this one.
    end = Bound(position.epoch, position.commit_lsn)
    earlier = entries.where(F.col("epoch") == end.epoch).where(F.col("end_lsn") <= int(end.lsn))
    return end, earlier.unionByName(entries.where(F.col("epoch") < end.epoch))


def as_query(entries: DataFrame) -> EntriesQuery:
    """An `EntriesQuery` of entries whose query exists already."""
    return lambda: entries


def choose_types(lake: Lake, table: TableName) -> Choose:
    """The function that returns the type that the settings choose for a column of a table."""
    types = lake.choose_types(table)
    return lambda column: settle_type(column, types.get(column.name))


def read_schema(table: DeltaTable) -> TableSchema:
    """Read the table schema of a table of the lake.

    Raises: LakeError if another writer has replaced the table, and its columns with it.
    """
    try:
        return TableSchema.from_metadata([field.metadata for field in table.schema().fields])
    except (ValueError, TypeError) as error:
        raise LakeError(
            f"another writer has replaced the table in {unquote(urlsplit(table.table_uri).path)}:"
            " its columns do not have Walgate's metadata",
            fix="run `walgate merge`: it builds the table again from the log, and queues a backfill"
            " if the log lacks changes",
            retry=Retry.AFTER_FIX,
        ) from error


def has_table_schema(table: DeltaTable) -> bool:
    """Whether the columns of a table carry the table schema that a merge gave them."""
    try:
        read_schema(table)
    except LakeError:
        return False
    return True


def _evolve(
    schema: TableSchema | None, relation: Relation, *, choose: Choose
) -> TableSchema | Halt:
    return accept_first(relation, choose) if schema is None else evolve(schema, relation, choose)


def _find_sweeps(read: EntriesQuery, summaries: list[RangeSummary]) -> tuple[Sweep, ...]:
    has_sweep = any(summary.operation == Operation.SWEEP for summary in summaries)
    return find_sweeps(read()) if has_sweep else ()


def find_relation(relations: Mapping[int, Relation], table: TableName, version: int) -> Relation:
    """Find the relation of a change. Raises: LakeError if the lake does not have it."""
    if version not in relations:
        raise LakeError(
            f"the log holds changes of {table} under relation version {version}, "
            "which staging/relations does not hold",
            fix="restore staging/relations from a backup of the lake",
            retry=Retry.AFTER_FIX,
        )
    return relations[version]


def describe_unknown(summary: RangeSummary) -> Halt:
    """Why a merge cannot apply the entries of an operation."""
    if summary.operation == Operation.UNDECODED:
        return Halt(
            "a change could not be decoded",
            "see `detail` of the undecoded entry in staging/changes, and correct the source; then"
            " read the whole table again with `walgate backfill`",
        )
    return Halt(
        f"the log holds a {summary.operation} entry, which this version does not apply",
        "merge with the version of Walgate that wrote it, or a newer one",
    )
