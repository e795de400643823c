"""What a backfill leaves in the spool until the log takes it: chunks and sweeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from cdc_core.vocabulary import Position, Relation

# The texts of a key's columns, in key order.
Key: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of a table as one snapshot saw them, as texts in the order of the relation's columns.

    `low` and `high` are the keys, as texts, that bound the rows: `low` is exclusive, `high` is
    inclusive, and None means no bound. `asked` are the keys that the worker asked for one by one;
    if such a key has no row, the source no longer has it. `by` are the columns of the bounds, with
    their types and collations. If the lake hashes one of them, `by` is empty and the chunk has no
    bounds.
    """

    relation: Relation
    values: pa.ChunkedArray
    low: Key | None
    high: Key | None
    asked: tuple[Key, ...] | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a table to read: keys from `low` to `high`, both inclusive, that `where` keeps.

    A bound with fewer texts than the table's key has columns is the beginning of a key. `where` is
    a condition in SQL.
    """

    low: Key | None = None
    high: Key | None = None
    where: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the scope is the whole table."""
        return self == WHOLE


WHOLE = Scope()


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """A sweep: a part of a table that a backfill has read, and the start position.

    The source no longer has the rows of this part whose position is below `start`.
    """

    relation: Relation
    start: Position
    scope: Scope = WHOLE
