"""What a backfill leaves in the spool until the log takes it: rows that were read, and sweeps."""

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

    `low` and `high` are the texts of the keys between which they lie, the first outside, the last
    inside; None where there is no bound. `asked` are the keys that were asked for one by one: those
    without a row are in the source no more. `by` are the columns that the bounds are of, with their
    types and collations; empty if the lake hashes one of them, and then there are no bounds.
    """

    relation: Relation
    values: pa.ChunkedArray
    low: Key | None
    high: Key | None
    asked: tuple[Key, ...] | None = None
    by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a table that is read: keys from `low` to `high`, both inside, that `where` keeps.

    A key of fewer texts than the table's key has columns is the beginning of one. `where` is a
    condition in SQL.
    """

    low: Key | None = None
    high: Key | None = None
    where: str | None = None

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole table."""
        return self == WHOLE


WHOLE = Scope()


@dataclass(frozen=True, slots=True)
class Sweeping:
    """A part of a table that was read: rows of it older than `start` are in the source no more."""

    relation: Relation
    start: Position
    scope: Scope = WHOLE
