"""Types the reads of a backfill by Arrow in Spark tasks, file by file: the fast first copy.

Spark's own readers and expressions take some ten times as long for the same rows. If Arrow cannot
type every read, the merge uses them, and the files that this module wrote are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Operation
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_bounds import is_reliable
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.fast_path.arrow_copy_task import ReadsToType, type_files
from spark_jobs.fast_path.same_code import OtherCode, run_on_executors
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import find_converts, match_names, table_fields
from spark_jobs.fold.steps import id_names
from spark_jobs.log.files import LogRange
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.session.failures import explain

_logger = logging.getLogger("walgate.merge")

# Bytes of the log for one task. The file that it writes for the table is about as large, and small
# enough for Arrow to rewrite it.
_FILE_BYTES = 64 << 20
# Bytes. The keys are in memory, and twice so while they are counted.
_MAX_KEY_BYTES = 256 << 20
_MAX_NEAR = 5_000_000


@dataclass(frozen=True, slots=True)
class TypedReads:
    """All reads of a table plan in the table's columns, in files that no commit names yet."""

    session: SparkSession
    schema: TableSchema
    files: tuple[WrittenFile, ...]
    keys: pa.Table  # The ids of each row, named as in a step.

    @property
    def rows(self) -> DataFrame:
        """The rows of all files."""
        spark_schema = T.StructType(table_fields(self.schema))
        return self.session.read.schema(spark_schema).parquet(
            *(file.path.uri for file in self.files)
        )

    @property
    def least(self) -> object:
        """The least value of the first key column; None without rows."""
        return pc.min(self.keys.column(0)).as_py()

    @property
    def greatest(self) -> object:
        """The greatest value of the first key column; None without rows."""
        return pc.max(self.keys.column(0)).as_py()

    def find_shared_keys(self, changed: pa.Table | None) -> tuple[pa.Table, int]:
        """The keys that several reads have or any change has; and how many of these a read has.

        `changed` has the keys of the other changes, in the form of `keys`.
        """
        names = self.keys.column_names
        if changed is None and _count_distinct(self.keys) == self.keys.num_rows:
            return self.keys.slice(0, 0), 0
        keys = _add_counts(self.keys, reads=1, changes=0)
        if changed is not None:
            keys = pa.concat_tables([keys, _add_counts(changed, reads=0, changes=1)])
        counted = keys.group_by(names).aggregate([("_reads", "sum"), ("_changes", "sum")])
        shared = counted.filter(
            pc.or_(pc.greater(counted["_reads_sum"], 1), pc.greater(counted["_changes_sum"], 0))
        )
        read_count = pc.sum(pc.greater(shared["_reads_sum"], 0), min_count=0).as_py()
        return shared.select(names), read_count

    def has_any_key(self, path: LakePlace, table: DeltaTable) -> bool | None:
        """Whether a table has a row with one of the keys.

        Walgate must be able to read the table's files directly. None if the files that may have the
        keys have too many rows, or an unknown number.
        """
        first, *_ = match_names(self.schema)
        near = [
            file
            for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
            if _may_hold(file, first, self.least, self.greatest)
        ]
        entries = [file["num_records"] for file in near]
        if None in entries or sum(entries) > _MAX_NEAR:
            return None
        held = (_read_keys(path / file["path"], self.schema) for file in near)
        names = self.keys.column_names
        return any(one.join(self.keys, names, join_type="left semi").num_rows for one in held)


def type_reads(
    session: SparkSession, plan: TablePlan, above: LogRange, attempt: Attempt
) -> TypedReads | None:
    """Type the reads of a table plan to files of an attempt; None if Arrow cannot type every read.

    The plan has every entry of the table in the log range `above`. Raises: OSError.
    """
    assert plan.schema is not None
    wanted = _find_wanted(plan, above)
    sources = None if wanted is None else above.find_files(str(plan.table))
    if not sources or wanted is None:
        return None
    files = _type_all(session, sources, wanted, attempt)
    # If the number of rows is not that of the range summaries, trust none of the files.
    is_all = files is not None and sum(file.rows for file in files) == _count(plan)
    keys = _gather_keys(files, plan.schema) if files and is_all else None
    return TypedReads(session, plan.schema, files, keys) if files and keys else None


def _find_wanted(plan: TablePlan, above: LogRange) -> ReadsToType | None:
    """The reads to type; None if the plan alone shows that Arrow cannot type every one."""
    schema = plan.schema
    assert schema is not None
    versions = {
        summary.relation_version
        for summary in plan.summaries
        if summary.operation == Operation.READ
    }
    relations = [plan.relations[version] for version in versions if version is not None]
    if plan.truncated_at is not None or len(relations) != 1:
        return None
    columns = find_converts(schema)
    if columns is None or TableSchema.of(relations[0]).names != schema.names:
        return None
    (version,) = versions
    assert version is not None
    return ReadsToType(
        str(plan.table),
        above.low,
        above.high,
        version,
        columns,
        max((sweep.start for sweep in plan.swept), default=None),
    )


def _count(plan: TablePlan) -> int:
    return sum(summary.entries for summary in plan.summaries if summary.operation == Operation.READ)


def _type_all(
    session: SparkSession, sources: Mapping[LakePlace, int], wanted: ReadsToType, attempt: Attempt
) -> tuple[WrittenFile, ...] | None:
    groups = _divide(sources, session.sparkContext.defaultParallelism)
    work = partial(type_files, wanted=wanted, attempt=attempt)
    attempt.may_have_unused = True
    try:
        typed = run_on_executors(session, groups, work)
    except OtherCode:
        return None
    except (PySparkException, Py4JJavaError) as error:
        # For example a task that was killed for lack of memory. Spark's own way needs no Python.
        fields = {"table": wanted.table, "reason": explain(error)}
        _logger.warning("reads are typed by Spark", extra={"fields": fields})
        return None
    files: list[WrittenFile] = []
    for of_task in typed:
        if of_task is None:
            return None
        files += of_task
    return tuple(files)


def _gather_keys(files: tuple[WrittenFile, ...], schema: TableSchema) -> pa.Table | None:
    """The ids of each row; None if they are too large for memory."""
    keys: list[pa.Table] = []
    for file in files:
        keys.append(_read_keys(file.path, schema))
        if sum(one.nbytes for one in keys) > _MAX_KEY_BYTES:
            return None
    return pa.concat_tables(keys)


def _read_keys(file: LakePlace, schema: TableSchema) -> pa.Table:
    names = match_names(schema)
    with open_input(file) as source:
        keys = pq.read_table(source, columns=names)
    return keys.select(names).rename_columns(id_names(schema))


def _count_distinct(keys: pa.Table) -> int:
    first, *others = keys.columns
    if not others and pa.types.is_integer(first.type) and not first.null_count:
        # Chunks bring the keys in sorted runs. To sort them takes a tenth of the time of hashing.
        ordered = np.sort(first.to_numpy(), kind="stable")
        return int(np.count_nonzero(np.diff(ordered))) + min(1, len(ordered))
    return int(keys.group_by(keys.column_names, use_threads=False).aggregate([]).num_rows)


def _add_counts(keys: pa.Table, *, reads: int, changes: int) -> pa.Table:
    """Add columns that say how many reads and changes each row counts for."""
    counts = {"_reads": reads, "_changes": changes}
    for name, count in counts.items():
        keys = keys.append_column(name, pa.repeat(pa.scalar(count, pa.int64()), keys.num_rows))
    return keys


def _may_hold(file: Mapping[str, Any], name: str, least: object, greatest: object) -> bool:
    """Whether, by its statistics, a file may have a value between two; True without statistics."""
    low, high = file.get(f"min.{name}"), file.get(f"max.{name}")
    is_of_type = type(low) is type(high) is type(least) is type(greatest)
    if not (is_of_type and is_reliable(low) and is_reliable(high)):
        return True
    is_outside: bool = high < least or greatest < low  # type: ignore[operator]  # Of one type.
    return not is_outside


def _divide(sources: Mapping[LakePlace, int], parallel: int) -> list[list[LakePlace]]:
    """Divide files among tasks, in order; as many tasks as run at once, or a multiple of that."""
    total = sum(sources.values())
    count = parallel * max(1, -(-total // (parallel * _FILE_BYTES)))
    groups: list[list[LakePlace]] = [[] for _ in range(count)]
    before = 0
    for path, size in sources.items():
        # The middle of a file decides, so that files of one size are divided evenly.
        groups[min(count - 1, (2 * before + size) * count // (2 * total))].append(path)
        before += size
    return [group for group in groups if group]
