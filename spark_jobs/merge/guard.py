"""Checks the two assumptions of a MERGE by key, and repairs the table if one is wrong.

The assumptions: each change that the MERGE brings is above the table's bound, and the table has one
row for each key. If both hold, each row that arrives is inserted or updates one row, so inserted +
updated = arrived. Fewer rows mean that the table kept rows with newer positions. More rows mean
that a key has several rows. The cause is another writer or a wrong bound. The merge then writes the
whole table again with one row for each key, and queues a backfill of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import Column as Expression
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from spark_jobs.fold.outcome import Outcome
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import apply_rows, match_keys, match_names
from spark_jobs.lake.lake import Epoch, Losses
from spark_jobs.log.reading import POSITION
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


def is_newer(own: str, arriving: str) -> Expression:
    """Whether a row of the table has a newer position than the row that arrives for its key.

    `own` and `arriving` are aliases. NULL sorts lowest in a struct, so a row without a position is
    older than every other row.
    """
    return _locate(own) > _locate(arriving)


def find_damage(*, arrived: int, inserted: int, updated: int) -> str | None:
    """Say what is wrong with a table by the counts of a MERGE; None if nothing is."""
    touched = inserted + updated
    if touched == arrived:
        return None
    cause = "rows with newer positions" if touched < arrived else "several rows with the same key"
    return f"a merge of {arrived} rows wrote {touched}: the table had {cause}"


def rewrite_table(  # noqa: PLR0917 - What is written, where, and what its commit says.
    session: SparkSession,
    path: Path,
    versions: tuple[DeltaTable, DeltaTable],
    epoch: Epoch,
    plan: TablePlan,
    outcome: Outcome,
) -> Written:
    """Overwrite the result of a MERGE, starting from the table before it.

    The new table has one row for each key, with the changes of the MERGE. A change that is older
    than its key's row is left out. `versions` are those before and after the MERGE; the new commit
    extends the second one.
    Raises: DeltaError if another commit came between; OSError.
    """
    assert plan.schema is not None
    schema, (before, after) = plan.schema, versions
    base = _keep_newest(TargetTable(session, path, before, schema).rows, schema).localCheckpoint()
    older = [*match_keys(schema), is_newer("t", "s")]
    rows = outcome.rows.alias("s").join(base.alias("t"), older, "left_anti").localCheckpoint()
    outcome = replace(outcome, rows=rows)
    lossy = count_losses(outcome, plan, base, None)
    touched = Observation()
    written = apply_rows(base, rows, schema, outcome.carried, swept=plan.swept, touched=touched)
    write_rows(written, path, after, "overwrite", epoch, plan, lossy)
    updated, deleted = touched.get["updated"], touched.get["deleted"]
    return Written(rows.where("_present").count() - updated, updated, deleted, lossy)


def _locate(rows: str) -> Expression:
    return F.struct(*(F.col(f"{rows}._{name}").alias(name) for name in POSITION))


def _keep_newest(rows: DataFrame, schema: TableSchema) -> DataFrame:
    """Keep one row of each key: the one with the newest position."""
    whole = F.struct(*(F.col(f"`{name}`") for name in rows.columns))
    position = F.struct(*(F.col(f"_{name}") for name in POSITION))
    keys = [F.col(f"`{name}`").alias(f"_of{i}") for i, name in enumerate(match_names(schema))]
    newest = rows.groupBy(*keys).agg(F.max_by(whole, position).alias("_row"))
    return newest.select("_row.*")
