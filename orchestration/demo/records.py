"""Reads Dagster's own records of the demo: its runs, and what they materialized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import dagster as dg

from cdc_core.settings import Settings
from cdc_core.vocabulary import Lsn, TableName
from orchestration.backfill import sensor as backfill_sensor
from orchestration.capture import replicate
from orchestration.merge import tables
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import PipelineRuns
from orchestration.runs.relaunch import RunRecord, read_runs

JOBS = {
    replicate.JOB_NAME: "keep_replicating",
    backfill_sensor.JOB_NAME: "backfill_queued_tables",
    tables.JOB_NAME: "merge_staged_changes",
}
_MAX_EVENTS = 10_000


@dataclass(frozen=True, slots=True)
class Applied:
    """The rows that merges changed in a table, as its materializations report them."""

    inserted: int
    updated: int
    deleted: int


class Records:
    """Reads the records of an instance, and finds what is new in them."""

    def __init__(self, instance: dg.DagsterInstance, settings: Settings) -> None:
        """Nothing was reported yet."""
        self._instance = instance
        self._keys, self._own = AssetKeys.of(settings), PipelineRuns.of(settings)
        self._told: dict[str, dg.DagsterRunStatus] = {}

    def read_news(self) -> list[str]:
        """Lines on what happened to runs since the last call: job by job, oldest run first."""
        news = []
        for job, sensor in JOBS.items():
            for run in reversed(read_runs(self._instance, self._own, job)):
                before = self._told.get(run.run_id)
                if before is None:
                    news.append(f"sensor {sensor} launched run {run.short_id} of job {job}")
                if run.status is not before and run.status in _WORTH_TELLING:
                    news.append(f"run {run.short_id} of {job} is {run.status.value}")
                self._told[run.run_id] = run.status
        return news

    def summarize(self) -> list[str]:
        """The runs of each job and what they materialized, a line for each job."""
        staged = list(self._read_materializations(self._keys.staging))
        merged = list(self._read_materializations(self._keys.cuts))
        read = list(self._read_materializations(self._keys.backfill))
        told = {
            replicate.JOB_NAME: (
                f"{len(staged)} materializations of staging/changes:"
                f" {_total(staged, 'transactions'):,} transactions,"
                f" {_total(staged, 'rows'):,} rows in {_total(staged, 'batches'):,} batches"
            ),
            backfill_sensor.JOB_NAME: (
                f"{len(read)} partitions of backfill: {_total(read, 'rows'):,} rows in"
                f" {_total(read, 'chunks'):,} chunks; {_total(read, 'stale_dropped'):,} more were"
                " dropped, because the log has newer changes of them"
            ),
            tables.JOB_NAME: (
                f"{len(merged)} materializations of ledger/cuts:"
                f" {_total(merged, 'rounds'):,} rounds, {_total(merged, 'entries'):,} entries"
            ),
        }
        return [
            f"{job}: {_list_runs(read_runs(self._instance, self._own, job))}; {what}"
            for job, what in told.items()
        ]

    def has_told(self, cut: Lsn) -> bool:
        """Whether the newest materialization of the cuts has this cut or a newer one."""
        newest = next(self._read_materializations(self._keys.cuts, limit=1), None)
        return newest is not None and Lsn.parse(str(newest["cut_lsn"])) >= cut

    def sum_applied(self, table: TableName) -> Applied:
        """The sum of what all materializations of a table report."""
        told = list(self._read_materializations(self._keys.find_table(table)))
        kinds = ("rows_inserted", "rows_updated", "rows_deleted")
        return Applied(*(_total(told, kind) for kind in kinds))

    def _read_materializations(
        self, key: dg.AssetKey, limit: int = _MAX_EVENTS
    ) -> Iterator[dict[str, object]]:
        """The metadata of an asset's materializations, newest first."""
        for record in self._instance.fetch_materializations(key, limit=limit).records:
            materialization = record.asset_materialization
            if materialization is not None:
                yield {name: entry.value for name, entry in materialization.metadata.items()}


_WORTH_TELLING = (
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.SUCCESS,
    dg.DagsterRunStatus.FAILURE,
    dg.DagsterRunStatus.CANCELED,
)


def _list_runs(runs: list[RunRecord]) -> str:
    listed = ", ".join(f"{run.short_id} {run.status.value}" for run in reversed(runs))
    return f"{len(runs)} run{'s' * (len(runs) != 1)} ({listed})"


def _total(told: list[dict[str, object]], name: str) -> int:
    return sum(value for entry in told if isinstance(value := entry.get(name), int))
