"""The Arrow merge: merges a few changes into a small table in one commit, without a Spark job.

Spark takes 0.7 s and one second of CPU for this, however few rows change; the Arrow merge takes a
tenth. It makes the commit that Spark would make, with the same rows. If the plan or the table is
not eligible (a value was not sent, say, or a key changed), it does nothing, and Spark merges.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from cdc_core.crash_points import reach
from spark_jobs.delta.decoded_size import bound_size, count_decoded, list_coded
from spark_jobs.delta.direct_parquet import can_read, commit_files, has_schema, is_plain, write_file
from spark_jobs.fast_path.arrow_fold import ArrowOutcome, fold_by_arrow
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import find_converts, match_names, table_fields
from spark_jobs.lake.lake import Epoch, read_losses
from spark_jobs.log.in_memory import LogInMemory
from spark_jobs.log.reading import ROW_OPERATIONS
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.target.result import TableMergeResult

# The most entries of a table in a round, and the most bytes that its rows take in memory.
_MOST_ENTRIES = 100_000
_MOST_BYTES = 64 << 20


def merge_by_arrow(
    path: Path,
    before: DeltaTable,
    epoch: Epoch,
    plan: TablePlan,
    log: LogInMemory,
    *,
    began: float,
) -> TableMergeResult | None:
    """Merge a table plan into a small table; do nothing and return None if it is not eligible.

    `log` must have the plan's log range. `began` is when the merge began, by the monotonic clock.
    Raises: DeltaError if another commit came between; LakeError if a file of the log cannot be
    read; MergeError if the disk refuses a file; OSError.
    """
    schema = plan.schema
    assert schema is not None
    columns = find_converts(schema)
    if columns is None or not _is_little(plan):
        return None
    if not (is_plain(before) and has_schema(before, table_fields(schema))):
        return None
    lossy = read_losses(before)
    if lossy is None or any(lossy.values()):
        return None
    entries = log.take(str(plan.table), plan.upper)
    outcome = None if entries is None else fold_by_arrow(entries, columns, schema.key)
    base = None if outcome is None else _read_rows(path, before, outcome.rows.schema)
    if outcome is None or base is None:
        return None
    kept, updated, deleted = _tell_apart(base, outcome, match_names(schema))
    rows = pa.concat_tables([kept, outcome.rows])
    reach("before_merge_commit")
    reached = (epoch, plan.upper)
    commit_files(path, before, write_file(rows, path), "overwrite", reached=reached, lossy=lossy)
    reach("after_merge_commit")
    # No other commit came between: delta-rs would have refused this one.
    version, inserted = before.version() + 1, outcome.rows.num_rows - updated
    seconds = time.monotonic() - began
    return TableMergeResult(version, rows.num_rows, inserted, updated, deleted, lossy, seconds)


def _is_little(plan: TablePlan) -> bool:
    """Whether a plan has few changes, only of rows, and all with the columns of the table."""
    schema = plan.schema
    assert schema is not None
    return (
        plan.before == schema
        and sum(summary.entries for summary in plan.summaries) <= _MOST_ENTRIES
        and all(summary.operation in ROW_OPERATIONS for summary in plan.summaries)
        and all(TableSchema.of(one).names == schema.names for one in plan.relations.values())
    )


def _read_rows(path: Path, table: DeltaTable, arrow_schema: pa.Schema) -> pa.Table | None:
    """Read the rows of a table.

    None if its files have other columns, are too large, or cannot be read without Delta.
    """
    names = pa.table(table.get_add_actions())["path"].to_pylist()
    if not can_read(path, table, names):
        return None
    size = 0
    read = [arrow_schema.empty_table()]
    for name in names:
        metadata = pq.read_metadata(path / name)
        coded = list_coded(metadata)
        groups = map(metadata.row_group, range(metadata.num_row_groups))
        size += sum(bound_size(group, arrow_schema.names, coded=coded) for group in groups)
        if size > _MOST_BYTES or {*metadata.schema.to_arrow_schema().names} != {
            *arrow_schema.names
        }:
            return None
        with pq.ParquetFile(path / name, metadata=metadata, read_dictionary=coded) as file:
            rows = file.read(use_threads=False).select(arrow_schema.names)
        size += count_decoded(rows, coded)
        if size > _MOST_BYTES:
            return None
        read.append(rows.cast(arrow_schema))
    return pa.concat_tables(read)


def _tell_apart(base: pa.Table, outcome: ArrowOutcome, key: list[str]) -> tuple[pa.Table, int, int]:
    """Return the rows of the base that stay, and how many others are updated and deleted."""
    arriving = outcome.rows.select(key).append_column(
        "_present", pa.repeat(pa.scalar(value=True), outcome.rows.num_rows)
    )
    gone = outcome.gone.append_column(
        "_present", pa.repeat(pa.scalar(value=False), outcome.gone.num_rows)
    )
    own = base.select(key).append_column("_place", pa.array(np.arange(base.num_rows)))
    met = own.join(pa.concat_tables([arriving, gone]), key, join_type="inner")
    stays = np.ones(base.num_rows, dtype=bool)
    stays[met["_place"].to_numpy()] = False
    updated = pc.sum(met["_present"], min_count=0).as_py()
    return base.filter(pa.array(stays)), updated, met.num_rows - updated
