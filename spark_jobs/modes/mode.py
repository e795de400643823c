"""The contract of a mode: which rows a table has, apart from how a merge writes them.

A fold says for each key that a row arrives, or that the key departed. A sweep and a TRUNCATE remove
rows, too. In every mode a table has the columns of `fold/rows.py`, which hold what the fold says.
A mode decides three things more:

- which columns of its own the table has, and what they hold in a row that arrives;
- whether a row stays in the table after its key departed, and what its columns then hold;
- therefore, which rows of the table are present. Readers, verifications, counts and the next fold
  see a row only if it is present.

The ways of writing ask the mode, and know no mode by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_jobs.fold.rows import META_NAMES, carry, insert, table_fields
from spark_jobs.schema.evolution import TableSchema

# By column name.
Values: TypeAlias = dict[str, Expression]


def _add_nothing(_: object) -> Values:
    return {}


@dataclass(frozen=True, slots=True)
class KeptRows:
    """How a table keeps a row whose key departed.

    `mark` is a BOOLEAN column of the mode. A merge sets it: true in a row that it keeps, false in a
    row that arrives. `depart` returns the other columns of the mode that change in a row that the
    merge keeps. Its argument is the alias of the departure, which has `_epoch`, `_commit_lsn`,
    `_seq` and `_committed_at`; None if a sweep or a TRUNCATE removes the row.
    """

    mark: str
    depart: Callable[[str | None], Values] = _add_nothing


@dataclass(frozen=True, slots=True)
class Mode:
    """What a table of this mode has.

    `fields` are the mode's own columns; their names begin with `_`. `arrive` returns their values
    in a row that arrives, without the mark; its argument is the alias of that row. `kept` is None
    if the table loses a row whose key departed.
    """

    name: str
    fields: tuple[T.StructField, ...] = ()
    arrive: Callable[[str], Values] = _add_nothing
    kept: KeptRows | None = None

    @property
    def has_quick_ways(self) -> bool:
        """Whether the quick ways may write the table; if not, Spark folds and writes all changes.

        The quick ways know only the columns of `fold/rows.py`, and keep no row whose key departed.
        """
        return not self.fields and self.kept is None

    def list_fields(self, schema: TableSchema) -> list[T.StructField]:
        """The columns of a table, with the metadata that hold the table schema."""
        return [*table_fields(schema), *self.fields]

    def insert(self, schema: TableSchema, carried: frozenset[int], source: str) -> Values:
        """The values of a `source` row whose key has no present row."""
        return insert(schema, carried, source) | self._arrive(source)

    def renew(
        self, schema: TableSchema, carried: frozenset[int], source: str, target: str
    ) -> Values:
        """The values of a `source` row that replaces a `target` row of its key.

        The row takes the columns in `carried` from a present target row, and from no other.
        """
        renewed = carry(schema, carried, source, target) | self._arrive(source)
        if self.kept is None or not carried:
            return renewed
        new = self.insert(schema, carried, source)
        is_present = self.is_present(target)
        return {name: F.when(is_present, renewed[name]).otherwise(new[name]) for name in renewed}

    def depart(self, departure: str | None) -> Values:
        """The values that change in a row that the table keeps.

        The position becomes that of the departure, so that no older change brings the row back.
        """
        assert self.kept is not None
        changed = {**self.kept.depart(departure), self.kept.mark: F.lit(True)}
        if departure is not None:
            changed |= {name: F.col(f"{departure}.{name}") for name in META_NAMES}
        return changed

    def is_present(self, rows: str) -> Expression:
        """Whether a row of the table is present; `rows` is the table's alias."""
        if self.kept is None:
            return F.lit(True)
        return ~F.coalesce(F.col(f"{rows}.`{self.kept.mark}`"), F.lit(False))

    def select_present(self, stored: DataFrame) -> DataFrame:
        """The present rows of a table, without the mode's own columns."""
        present = stored
        if self.kept is not None:
            present = stored.alias("t").where(self.is_present("t"))
        return present.drop(*(field.name for field in self.fields)) if self.fields else present

    def select_present_arrow(self, stored: pa.Table) -> pa.Table:
        """The same, of an Arrow table."""
        present = stored
        if self.kept is not None:
            is_kept = pc.fill_null(stored[self.kept.mark], False)
            present = stored.filter(pc.invert(is_kept))
        return present.drop_columns([field.name for field in self.fields])

    def _arrive(self, source: str) -> Values:
        mark = {} if self.kept is None else {self.kept.mark: F.lit(False)}
        return {**self.arrive(source), **mark}
