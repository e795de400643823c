"""Computes the rows of a table after a merge, as the mode of the table has them.

`apply_rows` computes the whole table. Spark's MERGE changes a table in place by the same rules
(`spark_jobs/merge/merge_by_key.py`); `count_kept` counts what its metrics do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.removals import RemovalPoints
from spark_jobs.fold.rows import META_NAMES, match_keys, match_names, select_values
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import Sweep, is_swept
from spark_jobs.lake.lake import count_rows
from spark_jobs.log.reading import POSITION
from spark_jobs.modes.mode import Mode, Values
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class TableRemoval:
    """What removes rows of a table besides changes of their keys.

    `swept` are the sweeps that together remove the rows. In a mode that keeps rows, `points` say
    which sweep or TRUNCATE removed a row first. If `is_rebuild`, the table is built again: its rows
    may have wrong values, so no row takes a value from them.
    """

    swept: Sequence[Sweep] = ()
    is_truncate: bool = False
    is_rebuild: bool = False
    points: RemovalPoints = field(default_factory=RemovalPoints)

    @classmethod
    def of(cls, plan: TablePlan, points: RemovalPoints) -> TableRemoval:
        """What removes rows in a plan."""
        return cls(plan.swept, plan.truncated_at is not None, plan.before is None, points)

    def removes(self, schema: TableSchema) -> Expression | None:
        """Whether it removes a row of the table, alias `t`; None if it removes no row."""
        if self.is_truncate:
            return F.lit(True)
        return is_swept("t", schema, self.swept) if self.swept else None


def apply_rows(
    target: DataFrame | None,
    rows: DataFrame,
    schema: TableSchema,
    carried: frozenset[int],
    *,
    mode: Mode,
    removal: TableRemoval,
    touched: Observation | None = None,
) -> DataFrame:
    """The table after a merge: `target` (None if none of its rows stays) with `rows` applied.

    If a target is given, the action that computes the table observes, in `touched`, how many rows
    are `updated` and `deleted`.
    """
    fields = mode.list_fields(schema)
    written = rows.where(_is_written(mode)).alias("s")
    new = mode.insert(schema, carried, "s")
    if target is None:
        return written.select(*select_values(new, fields))
    effect = _find_effect(mode, schema, removal)
    joined = _join_changes(target, rows, schema, mode)
    if touched is not None:
        counts = (
            F.count_if(effect.is_updated).alias("updated"),
            F.count_if(effect.is_deleted).alias("deleted"),
        )
        joined = joined.observe(touched, *counts)
    # A union has the metadata of its first part.
    same = {field.name: F.col(f"t.`{field.name}`") for field in fields}
    values = same if mode.kept is None else same | _remove(mode, schema, same, removal)
    kept = joined.where(effect.stays).select(*select_values(values, fields))
    if not carried or (removal.is_truncate and mode.kept is None):
        return kept.unionByName(written.select(*select_values(new, fields)))
    matches = match_keys(schema)
    found = target.alias("t").join(written.select(*id_names(schema)), matches, "left_semi")
    # Another writer may have left several rows of one key.
    found = found.dropDuplicates(match_names(schema))
    joined = written.join(found.alias("t"), matches, "left")
    takes = F.col(f"t.`{match_names(schema)[0]}`").isNotNull()
    if removal.is_rebuild:
        takes = F.lit(False)
    elif removal.is_truncate:
        # A row that came after the TRUNCATE takes no value from a row before it.
        takes &= ~F.col("s._present")
    renewed = mode.renew(schema, carried, "s", "t")
    replaced = {name: F.when(takes, renewed[name]).otherwise(new[name]) for name in new}
    return kept.unionByName(joined.select(*select_values(replaced, fields)))


@dataclass(frozen=True, slots=True)
class KeptCounts:
    """What Delta's counts of a MERGE do not show in a mode that keeps rows.

    `deleted`: present rows that become kept rows. `renewed`: those of the deleted that a last row
    replaces; the others are only marked. `returned`: kept rows that a present row replaces.
    `replaced`: all rows, kept or present, that a last row replaces. `inserted`: last rows whose key
    has no row in the table.
    """

    deleted: int = 0
    renewed: int = 0
    returned: int = 0
    replaced: int = 0
    inserted: int = 0


def count_kept(
    target: DataFrame, outcome: Outcome, schema: TableSchema, *, mode: Mode, removal: TableRemoval
) -> KeptCounts:
    """Count what a MERGE does to kept rows, and to present rows that it keeps.

    As in the MERGE, a row with a newer position than its change stays as it is.
    """
    effect = _find_effect(mode, schema, removal)
    is_present = mode.is_present("t")
    applies = F.col("s._present").isNull() | ~is_newer("t", "s")
    is_last = F.coalesce(F.col("s._kept"), F.lit(False))
    counted = _join_changes(target, outcome.rows, schema, mode).agg(
        F.count_if(applies & effect.is_deleted),
        F.count_if(applies & effect.is_deleted & is_last),
        F.count_if(applies & F.col("s._present") & ~is_present),
        F.count_if(applies & is_last),
        F.count_if(is_last),
    )
    ((deleted, renewed, returned, replaced, met),) = counted.collect()
    return KeptCounts(deleted, renewed, returned, replaced, outcome.kept - met)


def is_newer(own: str, arriving: str) -> Expression:
    """Whether a row of the table has a newer position than the row that arrives for its key.

    `own` and `arriving` are aliases. NULL sorts lowest in a struct, so a row without a position is
    older than every other row.
    """
    return _locate(own) > _locate(arriving)


def count_present(session: SparkSession, path: LakePlace, table: DeltaTable, mode: Mode) -> int:
    """Count the present rows of a table, at the version that `table` is open at."""
    if mode.kept is None:
        return count_rows(path, table)
    return mode.select_present(read_rows(session, path, table)).count()


@dataclass(frozen=True, slots=True)
class _Effect:
    """What a merge does to a row of the target, alias `t`, beside the change of its key, alias `s`.

    `stays`: the row is in the table after the merge, and no row replaces it.
    """

    stays: Expression
    is_updated: Expression
    is_deleted: Expression


def _find_effect(mode: Mode, schema: TableSchema, removal: TableRemoval) -> _Effect:
    present = F.col("s._present")
    is_removed = removal.removes(schema)
    if mode.kept is None:
        stays = present.isNull()
        if is_removed is not None:
            stays &= ~is_removed
        return _Effect(stays, present, ~stays & ~F.coalesce(present, F.lit(False)))
    is_present, arrives = mode.is_present("t"), F.coalesce(present, F.lit(False))
    stays = ~F.coalesce(_is_written(mode, "s."), F.lit(False))
    if removal.is_truncate:
        # As in every mode, all rows before a TRUNCATE count as deleted.
        return _Effect(stays, F.lit(False), is_present)
    departs = present.isNotNull() if is_removed is None else present.isNotNull() | is_removed
    return _Effect(stays, is_present & arrives, is_present & ~arrives & departs)


def _is_written(mode: Mode, rows: str = "") -> Expression:
    """Whether the table has a row of the fold; `rows` is its alias, with a dot."""
    is_present = F.col(f"{rows}_present")
    return is_present if mode.kept is None else is_present | F.col(f"{rows}_kept")


def _remove(mode: Mode, schema: TableSchema, same: Values, removal: TableRemoval) -> Values:
    """The values that a row of the target has after the merge, where a removal sets them.

    Only for rows that stay.
    """
    point = F.struct(*(F.col(f"s.{name}") for name in META_NAMES))
    departure = F.when(F.col("s._present").isNotNull(), point)
    removed = removal.points.find("t", schema, departure)
    is_removed = mode.is_present("t") & removed.isNotNull()
    changed = mode.remove(removed)
    return {name: F.when(is_removed, changed[name]).otherwise(same[name]) for name in changed}


def _join_changes(target: DataFrame, rows: DataFrame, schema: TableSchema, mode: Mode) -> DataFrame:
    """Each row of a target, alias `t`, beside the change of its key, alias `s`."""
    needed = ("_present",) if mode.kept is None else ("_present", "_kept", *META_NAMES)
    changes = rows.select(*id_names(schema), *needed).alias("s")
    return target.alias("t").join(changes, match_keys(schema), "left")


def _locate(rows: str) -> Expression:
    return F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))
