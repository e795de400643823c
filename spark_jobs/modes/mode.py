"""The contract of a mode: which rows a table has, apart from how a merge writes them.

A fold says for each key that a row arrives, or that the key departed. A sweep and a TRUNCATE remove
rows, too. In every mode a table has the columns of `fold/rows.py`, which hold what the fold says.
A mode decides two things more:

- which columns of its own the table has;
- whether a row stays in the table after its key departed. Such a row is kept: it has the last
  values of its key, and says when it was removed.

So a mode decides which rows of the table are present. Readers, verifications, counts and the next
fold see a row only if it is present. The ways of writing ask the mode, and know no mode by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cdc_core.vocabulary import TableMode
from spark_jobs.fold.rows import META_NAMES, carry, insert, table_fields
from spark_jobs.log.reading import POSITION
from spark_jobs.schema.evolution import TableSchema

# By column name.
Values: TypeAlias = dict[str, Expression]


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The columns by which a table shows which of its rows are kept.

    `mark` is BOOLEAN: true in a kept row, false in a present one. `time` is TIMESTAMP: when the
    source committed what removed the row, NULL in a present one.
    """

    mark: str
    time: str

    @property
    def fields(self) -> tuple[T.StructField, ...]:
        """The columns."""
        return (
            T.StructField(self.mark, T.BooleanType()),
            T.StructField(self.time, T.TimestampType()),
        )

    def show(self, removed_at: Expression | None) -> Values:
        """The values of the columns in a row that was removed at a time; None if it is present."""
        time = F.lit(None).cast(T.TimestampType()) if removed_at is None else removed_at
        return {self.mark: F.lit(removed_at is not None), self.time: time}


@dataclass(frozen=True, slots=True)
class Mode:
    """What a table of this mode has; `kept` is None if it loses a row whose key departed."""

    name: TableMode
    kept: KeptRows | None = None

    @property
    def fields(self) -> tuple[T.StructField, ...]:
        """The mode's own columns; their names begin with `_`."""
        return () if self.kept is None else self.kept.fields

    @property
    def has_quick_ways(self) -> bool:
        """Whether the quick ways may write the table; if not, Spark folds and writes all changes.

        The quick ways know only the columns of `fold/rows.py`, and keep no row whose key departed.
        """
        return self.kept is None

    def list_fields(self, schema: TableSchema) -> list[T.StructField]:
        """The columns of a table, with the metadata that hold the table schema."""
        return [*table_fields(schema), *self.fields]

    def insert(self, schema: TableSchema, carried: frozenset[int], source: str) -> Values:
        """The values of a `source` row whose key has no present row."""
        return insert(schema, carried, source) | self._show(source)

    def renew(
        self, schema: TableSchema, carried: frozenset[int], source: str, target: str
    ) -> Values:
        """The values of a `source` row that replaces a `target` row of its key.

        The row takes the columns in `carried` from a present target row, and from no other.
        """
        renewed = carry(schema, carried, source, target) | self._show(source)
        if self.kept is None or not carried:
            return renewed
        new = self.insert(schema, carried, source)
        is_present = self.is_present(target)
        return {name: F.when(is_present, renewed[name]).otherwise(new[name]) for name in renewed}

    def remove(self, removal: Expression) -> Values:
        """The values that change in a present row that becomes a kept row.

        `removal` is the log point of what removed it. The position becomes that of the removal, so
        that no older change brings the row back.
        """
        assert self.kept is not None
        names = (*POSITION, "committed_at")
        position = {own: removal[name] for own, name in zip(META_NAMES, names, strict=True)}
        return self.kept.show(removal["committed_at"]) | position

    def is_present(self, rows: str) -> Expression:
        """Whether a row of the table is present; `rows` is the table's alias."""
        if self.kept is None:
            return F.lit(True)
        return ~F.coalesce(F.col(f"{rows}.`{self.kept.mark}`"), F.lit(False))

    def select_present(self, stored: DataFrame) -> DataFrame:
        """The present rows of a table, without the mode's own columns."""
        if self.kept is None:
            return stored
        present = stored.alias("t").where(self.is_present("t"))
        return present.drop(*(field.name for field in self.fields))

    def select_present_arrow(self, stored: pa.Table) -> pa.Table:
        """The same, of an Arrow table."""
        if self.kept is None:
            return stored
        is_kept = pc.fill_null(stored[self.kept.mark], False)
        present = stored.filter(pc.invert(is_kept))
        return present.drop_columns([field.name for field in self.fields])

    def adopt(self, stored: DataFrame, written: Mode) -> DataFrame:
        """Convert the rows of a table from the mode in which it was written to this one.

        The kept rows of another mode are dropped.
        """
        if written == self:
            return stored
        present = written.select_present(stored)
        return present if self.kept is None else present.withColumns(self.kept.show(None))

    def _show(self, source: str) -> Values:
        """The values of the mode's own columns in a `source` row: a present one, or a last row."""
        if self.kept is None:
            return {}
        removed, present = self.kept.show(F.col(f"{source}._committed_at")), self.kept.show(None)
        is_kept = F.col(f"{source}._kept")
        return {name: F.when(is_kept, removed[name]).otherwise(present[name]) for name in removed}
