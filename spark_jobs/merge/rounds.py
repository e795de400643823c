"""Rounds: a round merges every table up to one cut, then writes the cut.

Each table's commits have the bound that it reached. After a crash, the next round goes on from it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from cdc_core.crash_points import reach
from cdc_core.errors import MergeError, Retry
from cdc_core.lake_storage.store_check import require_store
from cdc_core.table_states import TableState
from cdc_core.targets import Target, TargetKind
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.cut_plan import name_places
from spark_jobs.lake.lake import Bound, Lake, require_epochs
from spark_jobs.lake.ledger import (
    Cut,
    StateRecord,
    find_cut,
    read_places,
    read_states,
    rewrite_newest_commit,
    write_cut,
    write_states,
)
from spark_jobs.log.backlog import choose_cut
from spark_jobs.log.files import LogFiles
from spark_jobs.log.ranges import RangeSummary
from spark_jobs.log.round_log import RoundLog
from spark_jobs.merge.round_size import RoundSize
from spark_jobs.merge.round_start import RoundStart, find_behind
from spark_jobs.merge.targets import TableRound, has_sweep, merge_targets
from spark_jobs.schema.evolution import Halt
from spark_jobs.session.executors import requiring_executors
from spark_jobs.session.failures import Failures
from spark_jobs.session.session import find_jvm, reporting_jvm_death
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.older_targets import Inspection, inspect_targets
from spark_jobs.target.result import TableMergeResult

# Seconds. A staged batch wakes a waiting merge. Without wake-ups, the merge looks this often.
_FOLLOW_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Round:
    """One merge of all tables up to a cut, and what it did to each table.

    `staged` is the end of the log when the merge began. `committed_at` is when the source committed
    the newest transaction of the cut, `first_committed_at` when it committed the oldest change of
    the round. `created_at` is when the merge wrote the cut. `halted` has every halted table,
    `partial` the tables that may lack rows.
    """

    cut: Bound
    staged: Bound
    committed_at: datetime | None
    first_committed_at: datetime | None
    created_at: datetime
    tables: dict[str, TableMergeResult]
    halted: dict[str, Halt]
    partial: tuple[str, ...]
    entries: int
    seconds: float

    @property
    def waited_seconds(self) -> float | None:
        """Seconds from the source's commit of the oldest change to the cut; None without changes.

        Two clocks measure this; the result is never negative.
        """
        if self.first_committed_at is None:
            return None
        return max(0.0, (self.created_at - self.first_committed_at).total_seconds())


def merge_until(
    session: SparkSession,
    lake: Lake,
    *,
    round_rows: int | RoundSize,
    stop: threading.Event | None = None,
    deadline: float | None = None,
    tables: Collection[str] | None = None,
    passed_over: Collection[str] = (),
    rebuilt: Collection[str] = (),
    on_round: Callable[[Round], None] = lambda _: None,
    is_thorough: bool = True,
    limits: MergeLimits = DEFAULT_LIMITS,
) -> list[Round]:
    """Merge in rounds up to the staged LSN at the start. `tables` names the targets to merge.

    Each round takes about `round_rows` entries of a backlog; a `RoundSize` grows with them.
    After `stop` is set or the deadline (of the monotonic clock) has passed, no round begins. The
    first round tries halted tables again, except those in `passed_over`. Its cut names the newest
    versions of the targets in `rebuilt`, although they have no change. If the merge of one table
    fails, the table stays where it was. This round still merges the others, and no further round
    begins. If `is_thorough`, the merge first opens every table, to find those that are older than
    the newest cut says. It also writes the newest commits of cuts and states again, because the
    disk may have refused them before.
    Raises: LakeError if the lake has no epoch; MergeError if another process merges, if the merge
    of a table failed, or if Spark's JVM died; WalgateError if the cluster gives no executor.
    """
    epochs = require_epochs(lake)
    log = LogFiles.open(lake)
    staged = None if log is None else log.find_staged(epochs)
    size = RoundSize.of(round_rows)
    rounds: list[Round] = []
    with (
        reporting_jvm_death(session),
        requiring_executors(session),
        lake.lock_table("rounds", jvm=find_jvm(session)),
    ):
        if is_thorough:
            rewrite_newest_commit(lake.cuts)
            rewrite_newest_commit(lake.states)
        cut = find_cut(lake)
        relations = lake.read_relations()
        places = read_places(lake, cut, relations)
        if cut is not None and find_behind(cut, places, Inspection({})) - set(cut.halted):
            # The last run failed at a table. If this one fails there, too, it has only one round.
            size.stop_growing()
        while staged is not None and not _is_over(stop, deadline):
            places = read_places(lake, cut, relations)
            inspection = inspect_targets(
                lake, places, epochs, is_thorough=is_thorough and not rounds
            )
            behind = find_behind(cut, places, inspection)
            waiting = {table for table in behind if tables is None or table in tables}
            is_done = waiting.issubset(passed_over) and not rebuilt
            if cut is not None and cut.bound == staged and is_done:
                break
            if rounds:  # The first round reads the log as it was opened above.
                log = LogFiles.open(lake)
            assert log is not None
            starting = RoundStart(session, lake, log, epochs, relations, cut, places, inspection)
            failures = Failures(lake)
            done = _merge_round(
                starting,
                staged,
                size.choose(),
                chosen=tables,
                passed_over=passed_over,
                rebuilt=rebuilt,
                failures=failures,
                limits=limits,
            )
            rebuilt = ()
            if done is not None:
                merged, cut = done
                rounds.append(merged)
                size.count(merged.entries, merged.seconds)
                passed_over = merged.halted
                on_round(merged)
            failures.require_none()
            if done is None:
                break
    return rounds


def follow(
    session: SparkSession,
    lake: Lake,
    *,
    round_rows: int,
    linger_seconds: float | None,
    stop: threading.Event,
    deadline: float | None = None,
    tables: Collection[str] | None = None,
    on_round: Callable[[Round], None] = lambda _: None,
    wait: Callable[[float], object] | None = None,
) -> None:
    """Merge while changes arrive; return once none has arrived for `linger_seconds`.

    If `linger_seconds` is None, only `stop` or the deadline ends the merge. If it is 0, the merge
    takes only what is staged at the start. `wait` waits for a number of seconds, or less if it
    learns of a new batch. Without `wait`, only `stop` ends a wait early.
    Raises: as `merge_until`, and LakeError if the lake's store cannot do what Walgate needs.
    """
    require_store(lake.root)
    size = RoundSize(round_rows)
    idle_since = time.monotonic()
    merged: Bound | None = None
    halted: Collection[str] = ()
    while not _is_over(stop, deadline):
        staged = lake.read_staged(lake.read_epochs())
        if staged is not None and staged != merged:
            rounds = merge_until(
                session,
                lake,
                round_rows=size,
                stop=stop,
                deadline=deadline,
                tables=tables,
                passed_over=halted,
                on_round=on_round,
                is_thorough=merged is None,
            )
            halted = rounds[-1].halted if rounds else halted
            merged = staged
            if linger_seconds == 0:
                return
            # A mark moves the cut, but does not prolong the linger time.
            if any(done.tables for done in rounds):
                idle_since = time.monotonic()
        elif linger_seconds is not None and time.monotonic() - idle_since >= linger_seconds:
            return
        else:
            (wait or stop.wait)(_FOLLOW_WAIT_S)


def _is_over(stop: threading.Event | None, deadline: float | None) -> bool:
    late = deadline is not None and time.monotonic() >= deadline
    return late or (stop is not None and stop.is_set())


def _merge_round(
    start: RoundStart,
    staged: Bound,
    round_rows: int,
    *,
    chosen: Collection[str] | None,
    passed_over: Collection[str],
    rebuilt: Collection[str],
    failures: Failures,
    limits: MergeLimits,
) -> tuple[Round, Cut] | None:
    """Merge every table up to a cut, and write the cut; None if nothing is new since the newest."""
    began = time.monotonic()
    cut = start.low
    if cut is None or cut < staged:
        cut = choose_cut(start.log, start.low, staged, round_rows)
    with closing(RoundLog(start.session, start.log, start.low, cut)) as log:
        summaries = log.summaries
        touched = start.name_targets(
            {summary.table for summary in summaries if summary.table is not None}
        )
        # The end of a backfill may end the halt of its table, so try that table again.
        passed = {
            name
            for name in passed_over
            if not has_sweep(log.list_summaries(str(Target.parse(name).table)))
        }
        wanted = {
            name
            for name in touched | start.behind | {*rebuilt}
            if (chosen is None or name in chosen) and name not in passed
        }
        results = merge_targets(start, wanted, log, cut, failures=failures, limits=limits)
    if cut == start.low and not any(
        r.merged is not None
        or t in rebuilt
        or start.is_news(t, r.place, is_halted=r.halt is not None)
        for t, r in results.items()
    ):
        return None
    _require_newest(start, failures)
    halted = _write_states(start, results)
    reach("before_cut")
    written = _write_cut(start, cut, touched, results, halted=halted, summaries=summaries)
    reach("after_cut")
    merged = Round(
        cut,
        staged,
        written.committed_at,
        min((one.first_committed_at for one in summaries if one.table is not None), default=None),
        written.created_at,
        {table: result.merged for table, result in results.items() if result.merged},
        halted,
        written.partial,
        sum(summary.entries for summary in summaries),
        time.monotonic() - began,
    )
    return merged, written


def _require_newest(start: RoundStart, failures: Failures) -> None:
    """Check that no other round has written a cut since this one began.

    A process that was paused may have lost its lock. Its states and its cut would be older than
    those that another process has written. The commits of its tables stay.
    Raises: MergeError.
    """
    newest = find_cut(start.lake)
    if (newest and newest.run_id) == (start.cut and start.cut.run_id):
        return
    failures.require_none()
    raise MergeError(
        "another process has merged this lake since the round began",
        fix="let one process at a time merge; the next merge goes on from the newest cut",
        retry=Retry.LATER,
    )


def _write_states(start: RoundStart, results: dict[str, TableRound]) -> dict[str, Halt]:
    """Record the states that changed; return the halt of every halted target."""
    lake, known = start.lake, read_states(start.lake)
    states = {
        table: StateRecord(table, TableState.STREAMING)
        if result.halt is None
        else StateRecord(
            table,
            TableState.HALTED,
            result.halt.reason,
            result.halt.fix,
            result.place.bound,
            curable=result.halt.curable,
        )
        for table, result in results.items()
    }
    changed = [state for table, state in states.items() if known.get(table) != state]
    if changed:
        write_states(lake, changed)
    newest = known | states
    return {
        table: Halt(state.reason or "", state.fix or "", state.curable)
        for table, state in newest.items()
        if state.state is TableState.HALTED and start.is_asked_for(table)
    }


def _write_cut(
    start: RoundStart,
    cut: Bound,
    touched: set[str],
    results: dict[str, TableRound],
    *,
    halted: Collection[str],
    summaries: list[RangeSummary],
) -> Cut:
    places = name_places(
        cut,
        start.places,
        {table: result.place for table, result in results.items()},
        waiting=touched | start.behind,
        previous=start.low,
    )
    versions = {t: place.version for t, place in places.items() if place.version is not None}
    merged = {table: place.bound for table, place in places.items()}
    committed = max((summary.committed_at for summary in summaries), default=None)
    if committed is None and start.cut is not None:
        committed = start.cut.committed_at
    written = Cut(
        cut,
        committed,
        datetime.now(UTC),
        uuid.uuid4().hex,
        versions,
        merged,
        tuple(sorted(halted)),
        _list_partial(start.lake, places, cut),
        {table: place.held for table, place in places.items() if place.held is not None},
    )
    write_cut(start.lake, written)
    return written


def _list_partial(lake: Lake, targets: Collection[str], cut: Bound) -> tuple[str, ...]:
    """The tables that may lack rows at a cut. A target of entries lacks no entry of the log."""
    tables = [name for name in targets if Target.parse(name).kind is TargetKind.ROWS]
    return tuple(sorted(read_completeness(lake).list_incomplete(tables, cut)))
