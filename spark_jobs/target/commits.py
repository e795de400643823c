"""Commits to a table: its rows, the bound that it reached, and its counts of lost values.

One commit has all three, so they cannot disagree.

delta-rs commits the files that Spark or Arrow wrote. Such a commit names the version that it
extends, and delta-rs refuses it if another commit came between. Spark commits a MERGE itself; a
MERGE that runs twice leaves the same rows. If others gave a table features or properties
(constraints, a change feed), Spark makes every commit, and extends the newest version, whichever it
is. So Walgate only merges rows into such a table or overwrites it, which leaves the same rows, and
checks the commit afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import allows_direct_commits, write_files
from spark_jobs.fold.plan import TablePlan
from spark_jobs.lake.durability import require_durable
from spark_jobs.lake.lake import Bound, Epoch, Losses, format_losses
from spark_jobs.target.target_table import TargetTable

_TXN_APP = "spark.databricks.delta.write.txnAppId"
_TXN_VERSION = "spark.databricks.delta.write.txnVersion"
_USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


def write_rows(  # noqa: PLR0917 - What is written, where, and what its commit says.
    rows: DataFrame,
    target: TargetTable,
    before: DeltaTable,
    mode: str,
    epoch: Epoch,
    plan: TablePlan,
    lossy: Losses,
) -> None:
    """Write rows of a table in one commit that has the bound that the table reached.

    The commit extends `before`. If others gave the table features or properties, Spark's `mode`
    must be "overwrite" unless `rows` is empty.
    Raises: DeltaError if another commit came between.
    """
    write_table(
        rows,
        target.path,
        before,
        fields=target.fields,
        mode=mode,
        epoch=epoch,
        reached=plan.upper,
        lossy=lossy,
    )


def write_table(
    rows: DataFrame,
    path: LakePlace,
    before: DeltaTable,
    *,
    fields: Sequence[T.StructField],
    mode: str,
    epoch: Epoch,
    reached: Bound,
    lossy: Losses,
) -> None:
    """Write rows to the Delta table in a folder, as `write_rows` does."""
    if allows_direct_commits(before):
        with attempting(path, version=before.version() + 1) as attempt:
            change = FileChange(
                attempt,
                write_files(rows, attempt),
                replaces_all=mode == "overwrite",
                fields=fields,
            )
            commit_files(path, before, change, epoch=epoch, reached=reached, lossy=lossy)
        return
    writer = rows.write.format("delta").mode(mode)
    if mode == "overwrite":
        writer = writer.option("overwriteSchema", "true")
    writer = writer.option("userMetadata", format_losses(lossy))
    if before.transaction_version(epoch.app) == int(reached.lsn):
        # The table has this bound, but another writer has replaced its rows. Delta would skip a
        # write with the same bound, so this write has none.
        writer.save(path.uri)
        if open_delta(path).version() != before.version() + 1:
            raise _refuse(path)
        require_durable(path, above=before.version(), through=before.version() + 1)
        return
    (
        writer.option("txnAppId", epoch.app)
        .option("txnVersion", str(int(reached.lsn)))
        .save(path.uri)
    )
    if find_own_commit(path, before, epoch, reached).version != before.version() + 1:
        raise _refuse(path)
    require_durable(path, above=before.version(), through=before.version() + 1)


@dataclass(frozen=True, slots=True)
class OwnCommit:
    """A commit of Walgate: the version that it made, and its operation metrics."""

    version: int
    metrics: Mapping[str, Any]


def find_own_commit(path: LakePlace, before: DeltaTable, epoch: Epoch, reached: Bound) -> OwnCommit:
    """Find Walgate's commit of a bound after the version `before`; others may be between them.

    Raises: DeltaError if Walgate made none: Delta skips a write to a table that has the bound
    already.
    Source: the Delta protocol, sections Delta Log Entries and Transaction Identifiers.
    """
    own = {"appId": epoch.app, "version": int(reached.lsn)}
    version = before.version()
    while (commit := path / name_commit(version := version + 1)).exists():
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        said = [action["txn"] for action in actions if "txn" in action]
        if any(own.items() <= txn.items() for txn in said):
            told = [action["commitInfo"] for action in actions if "commitInfo" in action]
            metrics = told[0].get("operationMetrics") if told else None
            return OwnCommit(version, metrics or {})
    raise _refuse(path)


def _refuse(path: LakePlace) -> CommitFailedError:
    return CommitFailedError(f"another process has committed to {path}")


def open_bound_session(
    session: SparkSession, epoch: Epoch, plan: TablePlan, lossy: Losses
) -> SparkSession:
    """Open a session whose commits have the bound and the counts of lost values.

    Its other settings are those of `session`. A MERGE takes the bound from the settings of its
    session, so several tables cannot share one.
    """
    own = session.newSession()
    # A new session has only the settings that Spark was started with.
    for name, value in session.conf.getAll.items():
        if session.conf.isModifiable(name) and own.conf.get(name, None) != value:
            own.conf.set(name, value)
    own.conf.set(_TXN_APP, epoch.app)
    own.conf.set(_TXN_VERSION, str(int(plan.upper.lsn)))
    own.conf.set(_USER_METADATA, format_losses(lossy))
    return own


def move_bound(target: TargetTable, epoch: Epoch, plan: TablePlan, lossy: Losses) -> None:
    """Commit the bound that the table has reached, and no row."""
    path, before = target.path, target.table
    if allows_direct_commits(before):
        commit_files(path, before, FileChange(), epoch=epoch, reached=plan.upper, lossy=lossy)
    else:
        write_rows(target.stored.limit(0), target, before, "append", epoch, plan, lossy)
