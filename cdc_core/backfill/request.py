"""What a backfill reads: the part that was asked for, and the facts about it at the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cdc_core.backfill.marks import BackfillMark, format_backfill_mark
from cdc_core.protocol.concealment import Conceal, Concealment, Treatment
from cdc_core.settings import SourceSettings
from cdc_core.source.chunks import ChunkReader, OpenRead
from cdc_core.source.primary import FindHistory
from cdc_core.spooled import WHOLE, Scope
from cdc_core.vocabulary import Relation, TableName


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """A part of a table to read, in chunks of at most `chunk_rows` rows, with concealed columns.

    Each connection must reach the primary that has the history from `find_history`.
    """

    source: SourceSettings
    find_history: FindHistory
    table: TableName
    chunk_rows: int
    conceal: Conceal
    scope: Scope = WHOLE
    # The key's columns, with types and collations, at the start of the run; None before that.
    by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Resolved:
    """Facts about the part of a table that a backfill will read.

    `row_bytes` is the size of a row on disk. `by` are the columns that order the ranges, with types
    and collations. `unswept` is why the backfill cannot remove rows that the source no longer has;
    None if it can. `has_plain_key`: no key column is hashed. `costly` says how much WAL the first
    reading may write; None if the slot has room for it.
    """

    scope: Scope
    rows_estimated: int
    row_bytes: float | None
    unswept: str | None
    by: tuple[str, ...]
    has_plain_key: bool
    costly: str | None


def open_reader(wanted: BackfillRequest) -> ChunkReader:
    """Open a connection that reads the wanted part. Raises: SourceError."""
    return ChunkReader(wanted.source, wanted.table, wanted.scope, find_history=wanted.find_history)


def resolve(wanted: BackfillRequest) -> Resolved:
    """Read the facts about the wanted part from the source, before the backfill begins.

    Raises: ConfigurationError with every mistake in the part's bounds and condition, SourceError.
    """
    reader = open_reader(wanted)
    try:
        with reader.lock():
            opened = reader.look()
            scope = reader.resolve_scope(opened)
            unswept = (
                "the condition may leave out rows that exist" if scope.where is not None else None
            )
            unswept = unswept or _find_hashed(wanted, opened) or reader.find_unordered(opened)
            rows, row_bytes = reader.estimate(opened)
            hidden = find_hidden(opened, wanted.conceal(opened.relation))
            # To find the rows of a condition, the server may read the whole table.
            is_range = not scope.is_whole and scope.where is None
            costly = reader.explain_cost(rows=rows if is_range else None)
            return Resolved(scope, rows, row_bytes, unswept, opened.by, not hidden, costly)
    finally:
        reader.close()


@contextmanager
def hold_relation(
    wanted: BackfillRequest,
) -> Iterator[tuple[Relation, Callable[[BackfillMark], None]]]:
    """Lock the table while a block runs; yield its relation and a function that writes a step.

    The step enters the WAL when the block ends. Raises: SourceError, ConfigurationError.
    """
    reader = open_reader(replace(wanted, scope=WHOLE))
    try:
        with reader.lock():
            relation = reader.look().relation
            concealment = wanted.conceal(relation)
            held = concealment.conceal_relation(relation) if concealment else relation
            yield held, lambda step: reader.emit(format_backfill_mark(step))
    finally:
        reader.close()


def _find_hashed(wanted: BackfillRequest, opened: OpenRead) -> str | None:
    """Why Spark cannot compare keys with the bounds of the scope; None if no such key is hashed."""
    concealment = wanted.conceal(opened.relation)
    bounds = [key for key in (wanted.scope.low, wanted.scope.high) if key is not None]
    width = max((len(key) for key in bounds), default=0)
    if concealment is None:
        return None
    for index in opened.relation.key[:width]:
        if concealment.treatments[index] is not Treatment.KEEP:
            return f"{opened.relation.columns[index].name} is hashed in the lake"
    return None


def find_hidden(opened: OpenRead, concealment: Concealment | None) -> list[str]:
    """The names of the key columns that the settings exclude or hash."""
    return [
        opened.relation.columns[index].name
        for index in opened.relation.key
        if concealment is not None and concealment.treatments[index] is not Treatment.KEEP
    ]
