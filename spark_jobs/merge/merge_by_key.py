"""Merges changes into a table by Spark's MERGE, and checks afterwards what it did.

A MERGE suits every table and every change, but takes 2.5 s and more, however few rows change.
"""

from __future__ import annotations

from collections.abc import Mapping

from delta.tables import DeltaTable as SparkTable
from deltalake.exceptions import DeltaError
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from cdc_core.lake_storage.delta_tables import open_delta
from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import META_NAMES, match_names
from spark_jobs.fold.steps import id_names
from spark_jobs.fold.sweeps import is_swept
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Epoch, Lake, Losses
from spark_jobs.lake.ledger import queue_tables
from spark_jobs.merge.guard import Written, find_damage, rewrite_table
from spark_jobs.modes.mode import Mode
from spark_jobs.modes.registry import find_mode_of
from spark_jobs.modes.table_rows import KeptCounts, TableRemoval, count_kept, is_newer
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.commits import OwnCommit, find_own_commit, open_bound_session
from spark_jobs.target.target_table import TargetTable

_COUNTS = ("Inserted", "Updated", "Deleted")
# Delta skips files by literal ranges only. More ranges cost more planning.
_KEY_RANGES = 32


def merge_by_key(  # noqa: PLR0917 - What is written, where, and what its commit says.
    target: TargetTable,
    lake: Lake,
    epoch: Epoch,
    plan: TablePlan,
    outcome: Outcome,
    lossy: Losses,
    removal: TableRemoval,
) -> tuple[int, Written]:
    """MERGE, and rewrite the table if the counts are wrong; return the version and the counts.

    Raises: DeltaError if another commit came between, or if Delta's metrics are turned off.
    """
    path, before, mode = target.path, target.table, target.mode
    kept = KeptCounts()
    if mode.kept is not None:
        kept = count_kept(target.stored, outcome, target.schema, mode=mode, removal=removal)
    own_session = open_bound_session(target.session, epoch, plan, lossy)
    _merge(SparkTable.forPath(own_session, path.uri), outcome, target.schema, mode, removal)
    own = find_own_commit(path, before, epoch, plan.upper)
    require_durable(path, above=before.version(), through=own.version)
    inserted, updated, deleted = _read_counts(own, kept)
    written = Written(inserted, updated, deleted, lossy)
    damage = find_damage(arrived=outcome.arrived, inserted=inserted, updated=updated)
    if damage is None:
        return own.version, written
    # Queue the backfill before the rewrite: a crash between the two must not lose it.
    queue_tables(lake, [plan.table], reason=damage, since=plan.upper)
    # A process that was paused may have lost its lock, and others may have committed since. Then
    # Delta refuses the rewrite, because it extends this version.
    after = open_delta(path, version=own.version)
    written = rewrite_table(target, after, epoch, plan, outcome, removal)
    return after.version() + 1, written


def _read_counts(own: OwnCommit, kept: KeptCounts) -> tuple[int, int, int]:
    """Read how many rows a MERGE inserted, updated and deleted, from its commit.

    Delta counts as updated each present row that becomes a kept row, and each kept row that a row
    replaces. It counts as inserted each last row whose key has no row in the table.
    Raises: DeltaError if the commit has no counts.
    """
    names = [f"numTargetRows{what}" for what in _COUNTS]
    if not own.metrics.keys() >= {*names}:
        raise DeltaError(f"version {own.version} has no counts: Delta's metrics are turned off")
    inserted, updated, deleted = (int(own.metrics[name]) for name in names)
    marked = kept.deleted - kept.renewed
    return (
        inserted - kept.inserted + kept.returned,
        updated - marked - kept.replaced - kept.returned,
        deleted + kept.deleted,
    )


def _merge(
    table: SparkTable, outcome: Outcome, schema: TableSchema, mode: Mode, removal: TableRemoval
) -> None:
    carried = outcome.carried
    ids = id_names(schema)
    names = match_names(schema)
    matches = [f"t.`{name}` = s.{id_name}" for name, id_name in zip(names, ids, strict=True)]
    ranges = _bound_keys(outcome, ids[0])
    condition = F.expr(" and ".join(matches))
    if ranges:
        key = F.col(f"t.`{names[0]}`")
        inside = [key.between(F.lit(low), F.lit(high)) for low, high in ranges]
        anywhere = inside[0]
        for one in inside[1:]:
            anywhere |= one
        condition &= anywhere
    known = set(table.toDF().columns)
    if find_mode_of(known) != mode:
        # A paused process has lost its lock, and works by the settings of before.
        raise DeltaError("another process has written the table in another mode")
    # The table has no values of a new column to carry. Arriving rows have NULL, as older rows do.
    carried = frozenset(i for i in carried if schema.names[i] in known)
    renewed = mode.renew(schema, carried, "s", "t")
    merge = table.alias("t").merge(outcome.rows.alias("s"), condition)
    if not known.issuperset(renewed):
        merge = merge.withSchemaEvolution()
    is_written, is_older = F.col("s._present"), ~is_newer("t", "s")
    if mode.kept is not None:
        is_written |= F.col("s._kept")
    merge = merge.whenMatchedUpdate(is_written & is_older, _quote(renewed))
    is_present = mode.is_present("t")
    if outcome.departed:
        departs = ~F.col("s._present") & is_older
        if mode.kept is None:
            merge = merge.whenMatchedDelete(departs)
        else:
            point = F.struct(*(F.col(f"s.{name}") for name in META_NAMES))
            removed = removal.points.find("t", schema, point)
            merge = merge.whenMatchedUpdate(departs & is_present, _quote(mode.remove(removed)))
    new = mode.insert(schema, outcome.carried, "s")
    merge = merge.whenNotMatchedInsert(is_written, _quote(new))
    if removal.swept:
        swept = is_swept("t", schema, removal.swept)
        if mode.kept is None:
            merge = merge.whenNotMatchedBySourceDelete(swept)
        else:
            removed = removal.points.find("t", schema, None)
            values = _quote(mode.remove(removed))
            merge = merge.whenNotMatchedBySourceUpdate(swept & is_present, values)
    merge.execute()


def _bound_keys(outcome: Outcome, first_id: str) -> list[tuple[object, object]]:
    """Ranges that hold every first id: narrow for integers, one for texts, none for other types."""
    least, greatest = outcome.least, outcome.greatest
    if isinstance(least, bool) or not isinstance(least, int) or not isinstance(greatest, int):
        return [(least, greatest)] if isinstance(least, str) else []
    if greatest - least < _KEY_RANGES:
        return [(least, greatest)]
    width = (greatest - least) // _KEY_RANGES + 1
    bucket = F.floor((F.col(first_id).cast("decimal(38,0)") - F.lit(least)) / F.lit(width))
    rows = outcome.rows.groupBy(bucket).agg(F.min(first_id), F.max(first_id)).collect()
    return sorted((row[1], row[2]) for row in rows)


def _quote(values: Mapping[str, Expression]) -> dict[str, Expression | str]:
    return {f"`{name}`": value for name, value in values.items()}
