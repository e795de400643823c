"""Computes the rows of a table after a merge, as the mode of the table has them.

`apply_rows` computes the whole table. Spark's MERGE changes a table in place by the same rules
(`spark_jobs/merge/merge_by_key.py`); `count_kept` counts what its metrics do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.direct_parquet import read_rows
from spark_jobs.fold.rows import META_NAMES, match_keys, match_names, select_values
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import Sweep, is_swept
from spark_jobs.lake.lake import count_rows
from spark_jobs.log.reading import POSITION
from spark_jobs.modes.mode import Mode, Values
from spark_jobs.schema.evolution import TableSchema


@dataclass(frozen=True, slots=True)
class Removal:
    """What removes rows of a table besides changes of their keys: sweeps, or a TRUNCATE."""

    swept: Sequence[Sweep] = ()
    is_truncate: bool = False

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
    removal: Removal,
    touched: Observation | None = None,
) -> DataFrame:
    """The table after a merge: `target` (None if none of its rows stays) with `rows` applied.

    If a target is given, the action that computes the table observes, in `touched`, how many rows
    are `updated` and `deleted`.
    """
    fields = mode.list_fields(schema)
    arrived = rows.where("_present").alias("s")
    new = mode.insert(schema, carried, "s")
    if target is None:
        return arrived.select(*select_values(new, fields))
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
    values = same if mode.kept is None else same | _keep(mode, same, effect)
    kept = joined.where(effect.stays).select(*select_values(values, fields))
    if not carried or removal.is_truncate:
        return kept.unionByName(arrived.select(*select_values(new, fields)))
    matches = match_keys(schema)
    found = target.alias("t").join(arrived.select(*id_names(schema)), matches, "left_semi")
    joined = arrived.join(found.alias("t"), matches, "left")
    is_known = F.col(f"t.`{match_names(schema)[0]}`").isNotNull()
    renewed = mode.renew(schema, carried, "s", "t")
    replaced = {name: F.when(is_known, renewed[name]).otherwise(new[name]) for name in new}
    return kept.unionByName(joined.select(*select_values(replaced, fields)))


def count_kept(
    target: DataFrame, rows: DataFrame, schema: TableSchema, *, mode: Mode, removal: Removal
) -> tuple[int, int]:
    """Count the rows that a MERGE removes and the table keeps, and kept rows whose key returns.

    As in the MERGE, a row with a newer position than its change stays as it is.
    """
    effect = _find_effect(mode, schema, removal)
    applies = F.col("s._present").isNull() | ~is_newer("t", "s")
    returns = F.col("s._present") & ~mode.is_present("t")
    counted = _join_changes(target, rows, schema, mode).agg(
        F.count_if(applies & effect.is_deleted), F.count_if(applies & returns)
    )
    ((deleted, returned),) = counted.collect()
    return deleted, returned


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


def _find_effect(mode: Mode, schema: TableSchema, removal: Removal) -> _Effect:
    present = F.col("s._present")
    is_removed = removal.removes(schema)
    if mode.kept is None:
        stays = present.isNull()
        if is_removed is not None:
            stays &= ~is_removed
        return _Effect(stays, present, ~stays & ~F.coalesce(present, F.lit(False)))
    is_present, arrives = mode.is_present("t"), F.coalesce(present, F.lit(False))
    if removal.is_truncate:
        # As in every mode, all rows before a TRUNCATE count as deleted.
        return _Effect(~arrives, F.lit(False), is_present)
    departs = present.isNotNull() if is_removed is None else present.isNotNull() | is_removed
    return _Effect(~arrives, is_present & arrives, is_present & ~arrives & departs)


def _keep(mode: Mode, same: Values, effect: _Effect) -> Values:
    """The values that a row of the target has after the merge, where its key's departure sets them.

    Only for rows that stay.
    """
    changed, removed = mode.depart("s"), mode.depart(None)
    has_departure = F.col("s._present").isNotNull()
    return {
        name: F.when(effect.is_deleted & has_departure, changed[name])
        .when(effect.is_deleted, removed.get(name, same[name]))
        .otherwise(same[name])
        for name in changed
    }


def _join_changes(target: DataFrame, rows: DataFrame, schema: TableSchema, mode: Mode) -> DataFrame:
    """Each row of a target, alias `t`, beside the change of its key, alias `s`."""
    needed = ("_present",) if mode.kept is None else ("_present", *META_NAMES)
    changes = rows.select(*id_names(schema), *needed).alias("s")
    return target.alias("t").join(changes, match_keys(schema), "left")


def _locate(rows: str) -> Expression:
    return F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))
