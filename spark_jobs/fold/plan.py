"""The table plan: how far a table can follow a log range, in which schema, and why it halts.

A table halts just before the first transaction that it cannot follow. A merge applies the changes
before the halt; the changes after the halt wait. The halt depends on the log alone, and not on
where rounds begin and end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.errors import LakeError, Retry
from cdc_core.vocabulary import Operation, Position, Relation, ReplicaIdentity, TableName
from spark_jobs.fold.steps import take_steps
from spark_jobs.fold.sweeps import Sweep, find_sweeps
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.ranges import RangeSummary, summarize
from spark_jobs.log.reading import ROW_OPERATIONS, find_first, is_after
from spark_jobs.pg_types.types import settle_type
from spark_jobs.schema.evolution import Choose, Halt, TableSchema, accept_first, choose_own, evolve

# Makes a query of entries. That costs more than to merge a few, so callers make it when needed.
EntriesQuery: TypeAlias = Callable[[], DataFrame]

_KNOWN_OPERATIONS = ROW_OPERATIONS | {Operation.TRUNCATE, Operation.SWEEP}


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The changes of a log range, up to `upper`, that a table can follow; and its halt, if any."""

    table: TableName
    upper: Bound
    shape: TableSchema | None  # None if it had none and can follow no change.
    before: TableSchema | None
    halt: Halt | None
    read: EntriesQuery  # Its entries.
    spans: tuple[RangeSummary, ...]
    relations: Mapping[int, Relation]
    swept: tuple[Sweep, ...] = ()
    halted_at: Position | None = None  # The first change that cannot be followed.

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no change."""
        return not self.spans

    @property
    def truncated_at(self) -> Position | None:
        """The position of the last TRUNCATE; None without a TRUNCATE."""
        cuts = [span.last for span in self.spans if span.operation == Operation.TRUNCATE]
        return max(cuts, default=None)

    @property
    def has_moves(self) -> bool:
        """Whether a change may move a row to another key."""
        updates = [span for span in self.spans if span.operation == Operation.UPDATE]
        return any(span.has_old_values for span in updates)

    @property
    def unsent(self) -> frozenset[int]:
        """The columns that some change did not send.

        Under replica identity FULL the old row has every value, so these changes do not count.
        """
        assert self.shape is not None
        found: set[int] = set()
        for span in self.spans:
            relation = self.relations.get(span.relation_version or 0)
            if relation is None or relation.identity is ReplicaIdentity.FULL:
                continue
            found |= span.unchanged
        return frozenset(found)

    @property
    def has_default_to_apply(self) -> bool:
        """Whether an added column has a default that existing rows must receive."""
        if self.before is None or self.shape is None:
            return False
        younger = self.shape.columns[len(self.before.columns) :]
        return any(column.missing_value is not None for column in younger)

    def take_steps(self) -> DataFrame:
        """The row changes as steps, without those before the last TRUNCATE."""
        assert self.shape is not None
        entries = self.read().where(F.col("op").isin(*sorted(ROW_OPERATIONS)))
        if self.truncated_at is not None:
            entries = entries.where(is_after(self.truncated_at))
        return take_steps(entries, self.shape, self.relations, has_moves=self.has_moves)


def plan_table(
    log: EntriesQuery,
    table: TableName,
    spans: list[RangeSummary],
    *,
    before: TableSchema | None,
    relations: Mapping[int, Relation],
    upper: Bound,
    choose: Choose = choose_own,
) -> TablePlan:
    """Plan how far a table can follow a log range.

    `spans` are the range summaries of this table. `log` makes a query of the range's entries; this
    function calls it only if the summaries are not enough. `choose` returns the type that the
    settings choose for a column.
    Raises: LakeError if a change names a relation version that `relations` does not hold.
    """

    def read() -> DataFrame:
        return log().where(F.col("table") == str(table))

    used = {
        span.relation_version: _find_relation(relations, table, span.relation_version)
        for span in spans
        if span.relation_version is not None
    }
    shape, refused = _walk(read, table, spans, used, before, choose=choose)
    unknown = [span for span in spans if span.operation not in _KNOWN_OPERATIONS]
    for span in unknown:
        if refused is None or span.first < refused[0]:
            refused = (span.first, _describe_unknown(span))
    if refused is None:
        swept = _find_swept(read, spans)
        return TablePlan(table, upper, shape, before, None, read, tuple(spans), used, swept)
    position, halt = refused
    # Every earlier transaction ends at or before the commit record of the one that halts.
    upper = Bound(position.epoch, position.commit_lsn)
    entries = read()
    followed = entries.where(F.col("epoch") == position.epoch).where(
        F.col("end_lsn") <= int(position.commit_lsn)
    )
    followed = followed.unionByName(entries.where(F.col("epoch") < position.epoch))
    spans = summarize(followed)
    # The relation versions that the table cannot follow would not fit its schema.
    versions = {span.relation_version for span in spans}
    used = {version: relation for version, relation in used.items() if version in versions}
    shape, _ = _walk(as_query(followed), table, spans, used, before, choose=choose)
    swept = _find_swept(as_query(followed), spans)
    return TablePlan(
        table, upper, shape, before, halt, as_query(followed), tuple(spans), used, swept, position
    )


def as_query(entries: DataFrame) -> EntriesQuery:
    """A `EntriesQuery` of entries whose query exists already."""
    return lambda: entries


def choose_types(lake: Lake, table: TableName) -> Choose:
    """The function that returns the type that the settings choose for a column of a table."""
    types = lake.choose_types(table)
    return lambda column: settle_type(column, types.get(column.name))


def read_shape(table: DeltaTable) -> TableSchema:
    """Read the table schema of a table of the lake.

    Raises: LakeError if another writer has replaced the table, and its columns with it.
    """
    try:
        return TableSchema.from_metadata([field.metadata for field in table.schema().fields])
    except (ValueError, TypeError) as error:
        raise LakeError(
            f"another writer has replaced the table in {unquote(urlsplit(table.table_uri).path)}:"
            " its columns do not carry what Walgate keeps there",
            fix="`walgate merge` builds it again from the log, and queues a backfill where the log"
            " is short",
            retry=Retry.AFTER_FIX,
        ) from error


def has_shape(table: DeltaTable) -> bool:
    """Whether the columns of a table carry the table schema that a merge gave them."""
    try:
        read_shape(table)
    except LakeError:
        return False
    return True


def _walk(
    read: EntriesQuery,
    table: TableName,
    spans: list[RangeSummary],
    relations: Mapping[int, Relation],
    shape: TableSchema | None,
    *,
    choose: Choose,
) -> tuple[TableSchema | None, tuple[Position, Halt] | None]:
    """Follow the announcements by position, to the last or to the first that halts the table."""
    here: Position | None = None
    while True:
        steps: list[tuple[Position, TableSchema | Halt]] = []
        for version, relation in relations.items():
            following = (
                accept_first(relation, choose) if shape is None else evolve(shape, relation, choose)
            )
            own = [span for span in spans if span.relation_version == version]
            if following == shape or not own:
                continue
            first, last = min(span.first for span in own), max(span.last for span in own)
            if here is None or first > here:
                steps.append((first, following))
            elif last > here:
                steps.append((find_first(read(), str(table), [version], here), following))
        if not steps:
            return shape, None
        here, following = min(steps, key=lambda step: step[0])
        if isinstance(following, Halt):
            return shape, (here, following)
        shape = following


def _find_swept(read: EntriesQuery, spans: list[RangeSummary]) -> tuple[Sweep, ...]:
    has_sweep = any(span.operation == Operation.SWEEP for span in spans)
    return find_sweeps(read()) if has_sweep else ()


def _find_relation(relations: Mapping[int, Relation], table: TableName, version: int) -> Relation:
    if version not in relations:
        raise LakeError(
            f"the log holds changes of {table} under relation version {version}, "
            "which staging/relations does not hold",
            fix="restore staging/relations from a backup of the lake",
            retry=Retry.AFTER_FIX,
        )
    return relations[version]


def _describe_unknown(span: RangeSummary) -> Halt:
    if span.operation == Operation.UNDECODED:
        return Halt(
            "a change could not be decoded",
            "see `detail` of the undecoded entry in staging/changes; once the source is mended,"
            " `walgate backfill` of the table begins it anew",
        )
    return Halt(
        f"the log holds a {span.operation} entry, which this version does not apply",
        "merge with the version of Walgate that wrote it, or a newer one",
    )
