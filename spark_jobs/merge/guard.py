"""Checks the two assumptions of a MERGE by key, and repairs the table if one is wrong.

The assumptions: each change that the MERGE brings is above the table's bound, and the table has one
row for each key. If both hold, each row that arrives is inserted or updates one row, so inserted +
updated = arrived. Fewer rows mean that the table kept rows with newer positions. More rows mean
that a key has several rows. The cause is another writer or a wrong bound. The merge then writes the
whole table again with one row for each key, and queues a backfill of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from deltalake import DeltaTable
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import match_keys, match_names
from spark_jobs.lake.lake import Epoch, Losses
from spark_jobs.log.reading import POSITION
from spark_jobs.modes.table_rows import TableRemoval, apply_rows, is_newer
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.commits import write_rows
from spark_jobs.target.losses import count_losses
from spark_jobs.target.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class Written:
    """How many rows a merge inserted, updated and deleted, and which values the table has lost."""

    inserted: int
    updated: int
    deleted: int
    lossy: Losses


def find_damage(*, arrived: int, inserted: int, updated: int) -> str | None:
    """Say what is wrong with a table by the counts of a MERGE; None if nothing is."""
    touched = inserted + updated
    if touched == arrived:
        return None
    cause = "rows with newer positions" if touched < arrived else "several rows with the same key"
    return f"a merge of {arrived} rows wrote {touched}: the table had {cause}"


def rewrite_table(  # noqa: PLR0917 - What is written, where, and what its commit says.
    target: TargetTable,
    after: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    outcome: Outcome,
    removal: TableRemoval,
) -> Written:
    """Overwrite the result of a MERGE, starting from the table before it.

    The new table has one row for each key, with the changes of the MERGE. A change that is older
    than its key's row is left out. `target` is the table before the MERGE, `after` the one that
    the MERGE made. The new commit extends that one.
    Raises: DeltaError if another commit came between; OSError.
    """
    schema, mode = target.schema, target.mode
    base = _keep_newest(target.stored, schema).localCheckpoint()
    older = [*match_keys(schema), is_newer("t", "s")]
    rows = outcome.rows.alias("s").join(base.alias("t"), older, "left_anti").localCheckpoint()
    outcome = replace(outcome, rows=rows)
    lossy = count_losses(outcome, plan, mode.select_present(base), None)
    touched = Observation()
    written = apply_rows(
        base,
        rows,
        schema,
        outcome.carried,
        mode=mode,
        removal=removal,
        touched=touched,
    )
    write_rows(written, target, after, "overwrite", epoch, plan, lossy)
    updated, deleted = touched.get["updated"], touched.get["deleted"]
    return Written(rows.where("_present").count() - updated, updated, deleted, lossy)


def _keep_newest(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Keep one row of each key: the one with the newest position."""
    whole = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    position = F.struct(*(F.col(f"_{name}") for name in POSITION))
    keys = [F.col(f"`{name}`").alias(f"_of{i}") for i, name in enumerate(match_names(schema))]
    newest = rows.groupBy(*keys).agg(F.max_by(whole, position).alias("_row"))
    return newest.select("_row.*")
