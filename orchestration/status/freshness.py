"""Measures how old a change is when it can be read, from the lake alone and without a JVM.

At `live`, a transaction can be read once the log has the Delta commit that holds it. In the tables,
it can be read once a cut reaches its end LSN, in every table at once. Both delays begin at the
source's commit, by the source's clock, and end by the clock of the process that wrote the lake. The
time of a staging commit is that of its log file, which is written last. The time inside that file
was taken when the writing began, and the files that the commit adds are older still.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from cdc_core.lake_layout import COMMITS, DELTA_LOG
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Bound, Lake, open_table

_COLUMNS = ["table", "commit_lsn", "end_lsn", "committed_at"]
_BATCH_ROWS = 1 << 16

_Integers = npt.NDArray[np.int64]
_Seconds = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Delay:
    """Seconds from the source's commit, over `transactions` transactions."""

    transactions: int
    p50_s: float
    p95_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class Freshness:
    """Delays until `live` and until the tables of a cut; None if no transaction got there."""

    live: Delay | None
    tables: Delay | None


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit of the log: its end, its files, when it was written."""

    end: Bound
    files: tuple[LakePlace, ...]
    written_us: int


def measure_freshness(lake: Lake, since: Bound | None = None) -> Freshness:
    """Measure all transactions above a bound that changed rows, as far back as commits are kept.

    A transaction counts once, however many rows, files and tables it has. Marks do not count.
    """
    cuts = _read_cuts(lake)
    until_live: list[_Seconds] = []
    until_tables: list[_Seconds] = []
    for commit in _read_commits(lake.changes, since):
        end_lsns, committed_us = _read_transactions(commit)
        if since is not None and commit.end.epoch == since.epoch:
            above = end_lsns > int(since.lsn)
            end_lsns, committed_us = end_lsns[above], committed_us[above]
        until_live.append(_count_seconds(committed_us, commit.written_us))
        reached, cut_us = cuts.find_first(commit.end.epoch, end_lsns)
        until_tables.append(_count_seconds(committed_us[reached], cut_us))
    return Freshness(_summarize(until_live), _summarize(until_tables))


@dataclass(frozen=True, slots=True)
class _Cuts:
    """Cuts in order of bound; `created_us` is when the first cut at or above each was written."""

    epochs: _Integers
    lsns: _Integers
    created_us: _Integers

    def find_first(
        self, epoch: int, end_lsns: _Integers
    ) -> tuple[npt.NDArray[np.bool_], _Integers]:
        """Which end LSNs a cut has reached, and when the first did. Later epochs' cuts count."""
        low, high = np.searchsorted(self.epochs, [epoch, epoch + 1])
        found = low + np.searchsorted(self.lsns[low:high], end_lsns)
        reached = found < len(self.lsns)
        return reached, self.created_us[found[reached]]


def _read_cuts(lake: Lake) -> _Cuts:
    ledger = open_table(lake.cuts)
    if ledger is None:
        nothing = np.array([], np.int64)
        return _Cuts(nothing, nothing, nothing)
    rows = ledger.to_pyarrow_table(columns=["epoch", "cut_lsn", "created_at"])
    epochs, lsns, created = (
        rows.column(name).cast(pa.int64()).to_numpy() for name in ("epoch", "cut_lsn", "created_at")
    )
    order = np.lexsort((lsns, epochs))
    earliest = np.minimum.accumulate(created[order][::-1])[::-1]
    return _Cuts(epochs[order], lsns[order], earliest)


def _read_commits(changes: LakePlace, since: Bound | None) -> Iterator[_Commit]:
    """The commits of the log above a bound, newest first."""
    for file in sorted((changes / DELTA_LOG).list_matching(COMMITS), reverse=True):
        lines = map(json.loads, file.read_text().splitlines())
        # A compaction only writes old entries to new files.
        added = [line["add"] for line in lines if "add" in line and line["add"]["dataChange"]]
        if not added:
            continue
        ends = [json.loads(add["stats"])["maxValues"] for add in added]
        end = max(Bound(values["epoch"], Lsn(values["end_lsn"])) for values in ends)
        if since is not None and end <= since:
            return
        files = tuple(changes / add["path"] for add in added)
        yield _Commit(end, files, file.read_modified_us())


def _read_transactions(commit: _Commit) -> tuple[_Integers, _Integers]:
    """End LSN and commit time of each transaction of a commit that changed rows."""
    columns: list[tuple[_Integers, ...]] = []
    for path in commit.files:
        with open_input(path) as source, pq.ParquetFile(source, read_dictionary=["table"]) as file:
            columns += map(_take_distinct, file.iter_batches(_BATCH_ROWS, columns=_COLUMNS))
    commit_lsns, end_lsns, committed_us = (
        np.concatenate(values) for values in zip(*columns, strict=True)
    )
    _, first = np.unique(commit_lsns, return_index=True)
    return end_lsns[first], committed_us[first]


def _take_distinct(batch: pa.RecordBatch) -> tuple[_Integers, ...]:
    """Commit LSN, end LSN and commit time, once for each transaction that changed rows."""
    changed = batch.filter(batch.column("table").is_valid())
    commit_lsns, end_lsns, committed_us = (
        changed.column(name).cast(pa.int64()).to_numpy(zero_copy_only=False)
        for name in _COLUMNS[1:]
    )
    _, first = np.unique(commit_lsns, return_index=True)
    return commit_lsns[first], end_lsns[first], committed_us[first]


def _count_seconds(from_us: _Integers, until_us: _Integers | int) -> _Seconds:
    return ((until_us - from_us) / 1e6).astype(np.float32)


def _summarize(delays: list[_Seconds]) -> Delay | None:
    seconds = np.concatenate([*delays, np.array([], np.float32)])
    if not len(seconds):
        return None
    p50, p95 = np.percentile(seconds, [50, 95], method="inverted_cdf")
    return Delay(len(seconds), float(p50), float(p95), float(seconds.max()))
