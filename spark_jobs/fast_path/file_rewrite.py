"""Rewrites the files that changes touch, by Arrow, for all tables of a round at once.

Spark's MERGE takes 2.5 s for each table, for any number of changes. The result here is the table
that Spark would leave, with the same counts. The tasks of one Spark job do the work, or the driver
if the tables are tiny. The caller commits the files.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import ReplicaIdentity
from spark_jobs.delta.attempts import Attempt, attempting
from spark_jobs.delta.direct_parquet import (
    VECTORS_PROPERTY,
    allows_direct_commits,
    can_read_files,
    has_columns,
    list_deletions,
)
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.fast_path.key_search import TableFile
from spark_jobs.fast_path.rewrite_task import (
    LogSlice,
    Portion,
    RefusedPortion,
    RewrittenPortion,
    rewrite_portions,
)
from spark_jobs.fast_path.same_code import OtherCode, run_on_executors
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.rows import find_converts, match_names, table_fields
from spark_jobs.lake.lake import read_losses
from spark_jobs.log.files import LogRange
from spark_jobs.log.reading import ROW_OPERATIONS
from spark_jobs.pg_types.arrow_rows import Columns
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.session.failures import explain
from spark_jobs.target.limits import MergeLimits

_logger = logging.getLogger("walgate.merge")
# The most bytes of changes in the memory of the driver, which the kernel must not kill.
_DRIVER_MEMORY = 16 << 20


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """What to rewrite: the files of a table at the version below `version`, and its changes.

    `has_whole_old`: the source may have sent whole old rows. `lacks_values`: the source did not
    send some values. `max_bytes`: the most bytes of files with a changed key in one portion.
    """

    folder: LakePlace
    version: int
    files: tuple[TableFile, ...]
    columns: Columns
    key: tuple[int, ...]
    has_whole_old: bool
    lacks_values: bool
    changes: LogSlice
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The files that replace others of a table, by name, and how many rows the changes touched.

    `attempt` wrote the added files. `seconds` is how long the tasks worked on the table.
    """

    attempt: Attempt
    removed: tuple[str, ...]
    added: tuple[WrittenFile, ...]
    inserted: int
    updated: int
    deleted: int
    seconds: float


def plan_rewrite(
    folder: LakePlace, table: DeltaTable, plan: TablePlan, above: LogRange, limits: MergeLimits
) -> FileRewrite | str:
    """Plan the rewrite of files for a table plan; if Arrow cannot do it, return the reason.

    `above` is the log range; it has exactly the plan's changes of the table.
    """
    schema = plan.schema
    assert schema is not None
    reason = next(_list_refusals(table, plan, schema), None)
    own = above.find_files(str(plan.table))
    if reason is not None or own is None:
        return reason or "the log has files that only Delta can read"
    if len(own) > limits.rewrite_log_files:
        return f"the changes lie in {len(own)} files of the log"
    files = above.find_files()
    if files is None or sum(files.values()) > limits.shared_log_bytes:
        files = own
    found = _list_files(table, match_names(schema)[0])
    if not can_read_files(folder, table, [file.name for file in found]):
        return "the table has files that only Delta can read"
    columns = find_converts(schema)
    assert columns is not None
    changes = LogSlice(str(plan.table), files, own, above.low, above.high)
    # The settings turn deletion vectors on so that a merge writes few bytes.
    has_vectors = table.metadata().configuration.get(VECTORS_PROPERTY) == "true"
    max_bytes = limits.rewrite_bytes_of_vectors if has_vectors else limits.rewrite_bytes
    if plan.unsent:
        # The portion that looks for these values refuses more; the others would work in vain.
        max_bytes = min(max_bytes, limits.carried_file_bytes)
    identities = {relation.identity for relation in plan.relations.values()}
    has_whole_old = ReplicaIdentity.FULL in identities
    lacks_values = bool(plan.unsent)
    return FileRewrite(
        folder,
        table.version() + 1,
        found,
        columns,
        schema.key,
        has_whole_old,
        lacks_values,
        changes,
        max_bytes,
    )


def _list_refusals(table: DeltaTable, plan: TablePlan, schema: TableSchema) -> Iterator[str]:
    """List the reasons why Arrow cannot apply a table plan to a table."""
    if find_converts(schema) is None:
        yield "a column has a type that Arrow does not convert"
    versions = [TableSchema.of(relation).names for relation in plan.relations.values()]
    if plan.before != schema or any(names != schema.names for names in versions):
        yield "the columns of the table change"
    if any(summary.operation not in ROW_OPERATIONS for summary in plan.summaries):
        yield "the changes have a TRUNCATE or a sweep"
    if not (allows_direct_commits(table) and has_columns(table, table_fields(schema))):
        yield "another program gave the table features, properties or columns"
    losses = read_losses(table)
    if losses is None or any(losses.values()):
        yield "the table has values that its types do not hold"


@contextmanager
def rewriting_files(
    session: SparkSession, rewrites: Sequence[FileRewrite], limits: MergeLimits
) -> Iterator[Mapping[str, RewrittenFiles | str]]:
    """Rewrite files of some tables; yield for each table the result or a refusal.

    One Spark job does it for all tables. If they are tiny together, the driver does it itself.
    When the block ends, the files that no commit took are removed.
    """
    with ExitStack() as entered:
        parallel = session.sparkContext.defaultParallelism
        portions: list[Portion] = []
        attempts: dict[str, Attempt] = {}
        refused: dict[str, RewrittenFiles | str] = {}
        for rewrite in rewrites:
            try:
                attempt = entered.enter_context(attempting(rewrite.folder, version=rewrite.version))
            except OSError as error:
                refused[rewrite.changes.table] = f"no record could be written: {explain(error)}"
            else:
                attempts[rewrite.changes.table] = attempt
                portions += _divide(rewrite, attempt, parallel, limits)
        done = _rewrite_in_driver(rewrites, portions, limits)
        if done is None:
            # The driver may have written some files, and Spark may do a task twice.
            for attempt in attempts.values():
                attempt.may_have_unused = True
            done = _run_job(session, _distribute(portions, parallel), limits)
        tables = dict.fromkeys(one.table for one in done)
        yield refused | {
            table: _join(attempts[table], [one for one in done if one.table == table])
            for table in tables
        }


def _list_files(table: DeltaTable, first: str) -> tuple[TableFile, ...]:
    deleted = list_deletions(table)
    return tuple(
        TableFile(
            file["path"],
            file["size_bytes"],
            file.get(f"min.{first}"),
            file.get(f"max.{first}"),
            file["path"] in deleted,
        )
        for file in pa.table(table.get_add_actions(flatten=True)).to_pylist()
    )


def _divide(
    rewrite: FileRewrite, attempt: Attempt, parallel: int, limits: MergeLimits
) -> list[Portion]:
    """Divide the files of a table into portions; the first has the files that may get more rows."""
    by_size = sorted(rewrite.files, key=lambda file: file.size)
    sizes = accumulate(file.size for file in by_size)
    open_files = {
        file.name
        for file, total in zip(by_size, sizes, strict=True)
        if file.size < limits.open_file_bytes and total <= limits.joined_file_bytes
    }
    first = [file for file in rewrite.files if file.name in open_files]
    others = [file for file in rewrite.files if file.name not in open_files]
    # Deal the files in turn. The newest files change most, and are neighbours in the list.
    groups = [first, *(others[i::parallel] for i in range(parallel))]
    return [
        Portion(
            rewrite.changes,
            rewrite.columns,
            rewrite.key,
            rewrite.has_whole_old,
            rewrite.folder,
            attempt,
            tuple(files),
            rewrite.files if number == 0 and rewrite.lacks_values else (),
            takes_arrivals=number == 0,
            max_bytes=rewrite.max_bytes,
        )
        for number, files in enumerate(groups)
        if files or number == 0
    ]


def _distribute(portions: list[Portion], parallel: int) -> list[list[Portion]]:
    """Distribute portions to as many tasks as run at once, the largest first."""
    tasks: list[list[Portion]] = [[] for _ in range(min(parallel, len(portions)))]
    loads = [0] * len(tasks)
    for portion in sorted(portions, key=_weigh, reverse=True):
        lightest = loads.index(min(loads))
        tasks[lightest].append(portion)
        loads[lightest] += _weigh(portion)
    return tasks


def _weigh(portion: Portion) -> int:
    """Weigh a portion by the bytes that it may read."""
    return sum(file.size for file in portion.files) + sum(portion.changes.files.values())


def _rewrite_in_driver(
    rewrites: Sequence[FileRewrite], portions: list[Portion], limits: MergeLimits
) -> list[RewrittenPortion | RefusedPortion] | None:
    """Rewrite portions in this process; None if they are not tiny, or if one was refused."""
    size = sum(file.size for rewrite in rewrites for file in rewrite.files)
    log_size = sum(sum(rewrite.changes.own.values()) for rewrite in rewrites)
    if portions and (size >= limits.driver_bytes or log_size >= limits.driver_log_bytes):
        return None
    done = rewrite_portions(portions, limits, max_log_bytes=_DRIVER_MEMORY)
    # A task has more memory. If it refuses, too, it gives the reason.
    return None if any(isinstance(one, RefusedPortion) for one in done) else done


def _run_job(
    session: SparkSession, tasks: list[list[Portion]], limits: MergeLimits
) -> list[RewrittenPortion | RefusedPortion]:
    """Rewrite portions in the tasks of one Spark job, each task those of one list."""
    work = partial(rewrite_portions, limits=limits)
    try:
        done = run_on_executors(session, tasks, work)
    except ConnectionError:
        # Spark's JVM is gone, so no table can be merged.
        raise
    except OtherCode:
        reason = "the executors have other code than the driver"
        return [RefusedPortion(portion.changes.table, reason) for task in tasks for portion in task]
    except (PySparkException, Py4JJavaError, OSError) as error:
        # For example a task that was killed for lack of memory. Spark's own way needs no Python.
        reason = f"a task failed: {explain(error)}"
        _logger.warning(
            "Arrow could not rewrite files: Spark merges the tables",
            extra={"fields": {"reason": reason}},
        )
        return [RefusedPortion(portion.changes.table, reason) for task in tasks for portion in task]
    return [one for of_task in done for one in of_task]


def _join(
    attempt: Attempt, portions: Sequence[RewrittenPortion | RefusedPortion]
) -> RewrittenFiles | str:
    """Join the portions of one table. If a portion was refused, return the reason."""
    done: list[RewrittenPortion] = []
    for portion in portions:
        if isinstance(portion, RefusedPortion):
            return portion.reason
        done.append(portion)
    found = frozenset[int]().union(*(portion.found for portion in done))
    if len(found) < sum(len(portion.found) for portion in done):
        return "the table has several rows with the same key"
    arrived = done[0].arrived
    updated = sum(index < arrived for index in found)
    return RewrittenFiles(
        attempt,
        tuple(name for portion in done for name in portion.removed),
        tuple(file for portion in done for file in portion.added),
        arrived - updated,
        updated,
        len(found) - updated,
        sum(portion.seconds for portion in done),
    )
