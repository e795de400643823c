"""Merges and readers: the real rounds, cuts and plans of both, over tables in memory.

In place of Spark, the fold on Arrow runs if it can fold the changes, else the judge's interpreter.
The real parts decide how far a table goes, whether its files are rewritten by the job of the whole
round, which cut is written, which versions it names, and what a reader folds on top of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cdc_core.errors import LakeError, MergeError
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.delta.attempts import Attempt
from spark_jobs.fast_path.file_rewrite import FileRewrite, RewrittenFiles
from spark_jobs.fast_path.rewrite_task import LogSlice
from spark_jobs.fold import announcements, rebuild
from spark_jobs.fold import plan as table_plan
from spark_jobs.fold.plan import TablePlan
from spark_jobs.fold.sweeps import Sweep
from spark_jobs.lake.lake import Bound, Epoch
from spark_jobs.lake.ledger import Cut, StateRecord
from spark_jobs.log.files import LogFile, LogRange
from spark_jobs.log.ranges import RangeSummary
from spark_jobs.maintenance.log_floor import find_floor
from spark_jobs.merge import merge, opened_target, round_start, rounds, targets
from spark_jobs.merge.merge import TableMerge
from spark_jobs.modes import mode
from spark_jobs.modes.current import CURRENT
from spark_jobs.modes.mode import Mode
from spark_jobs.query import as_of, stored
from spark_jobs.target import older_targets
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import TableMergeResult, WritePlan
from tests.simulation import frames
from tests.simulation.frames import Frame, is_between, list_summaries
from tests.simulation.lake import SimulatedLake, can_fold_by_arrow, fold_changes
from tests.simulation.staging import Entry
from tests.simulation.tables import Opened, Rows, Version
from tests.simulation.world import World

MERGER = "merger"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a merge: how many entries a round takes, which tables, where Spark fails."""

    round_rows: int = 1000
    tables: Collection[str] | None = None
    failing: str | None = None


def start_merger(world: World, runs: list[Run]) -> None:
    """Have a merger do its runs, each once something is staged that it has not seen."""

    def work() -> None:
        while runs:
            _wait_for_news(world)
            _merge(world, runs.pop(0))

    world.scheduler.spawn(MERGER, work)


def _wait_for_news(world: World) -> None:
    seen = len(world.log.entries)
    if world.tables.cuts or not seen:
        world.scheduler.wait("merges", lambda: len(world.log.entries) > seen)


def restart_merger(world: World, runs: list[Run]) -> None:
    """End the merger wherever it is, and have another go on."""
    world.scheduler.kill(MERGER)
    world.tables.unlock(MERGER)
    start_merger(world, runs)


def _merge(world: World, run: Run) -> None:
    world.tables.failing = {run.failing} if run.failing else set()
    try:
        rounds.merge_until(
            cast("Any", None),
            SimulatedLake.make(MERGER),
            round_rows=run.round_rows,
            tables=run.tables,
        )
    except MergeError as error:
        world.scheduler.note(error.message)


def maintain(world: World) -> None:
    """Drop some cuts, and trim the log up to its floor, as maintenance and capture do."""
    cuts = sorted(world.tables.cuts, key=lambda cut: cut.bound)
    if not cuts:
        return
    kept = [cut for cut in cuts[:-1] if world.scheduler.draw(2)] + cuts[-1:]
    floor = find_floor(kept, aged=kept[-1].bound, started=[])
    assert floor is not None
    world.tables.cuts = kept
    halted = {table for table in kept[-1].halted if kept[-1].find_place(table).bound < floor.bound}
    world.tables.queued |= halted
    # The newest batch stays for the replay check.
    ends = [Bound(epoch, Lsn(end)) for epoch, end, _ in world.log.batches[:-1]]
    world.log.trimmed = max((end for end in ends if end <= floor.bound), default=None)
    world.scheduler.note(f"maintenance keeps {len(kept)} cuts, trims to {world.log.trimmed}")


def read_table(table: str, at: Bound) -> tuple[Rows, bool] | None:
    """A table's rows at a bound, and whether it is named as not whole; None if it has none."""
    lake = SimulatedLake.make("reader")
    try:
        reading = as_of.table_at(cast("Any", None), lake, TableName("public", table), at)
    except LakeError:
        return None
    is_named = reading.halt is not None or f"public.{table}" in World.now.tables.queued
    return cast("Any", reading.rows).rows, is_named


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows in the place of a DataFrame."""

    rows: Rows

    def select(self, *_: str) -> _Rows:
        return self


class _RoundLog:
    """What `RoundLog` is to a round."""

    def __init__(
        self, _: Any, files: Any, low: Bound | None, high: Bound, *, table: str | None = None
    ) -> None:
        self.range = LogRange(files, cast("Any", low), high)
        entries = World.now.log.entries
        is_own = (
            e
            for e in entries
            if is_between(e, low, high) and table in {None, e.table} and not _is_trimmed(e)
        )
        self._frame = Frame(tuple(is_own))

    @property
    def summaries(self) -> list[RangeSummary]:
        return list_summaries(self._frame.entries)

    def list_summaries(self, table: str) -> list[RangeSummary]:
        return [summary for summary in self.summaries if summary.table == table]

    def read(self) -> Frame:
        return self._frame

    def close(self) -> None:
        pass


class _LogFiles:
    """What `LogFiles` is to the choice of a cut: a file for each batch that has landed."""

    @staticmethod
    def open(_: Any) -> SimpleNamespace:
        files = [
            LogFile(f"{n}", 1, count, 0, None, Bound(epoch, Lsn(end)), None, None)
            for n, (epoch, end, count) in enumerate(World.now.log.batches)
        ]
        trimmed = World.now.log.trimmed
        left = (file for file in files if trimmed is None or cast("Bound", file.end) > trimmed)
        staged = dict(World.now.log.staged) if World.now.log.entries else None

        def find_staged(epochs: list[Epoch]) -> Bound | None:
            newest = epochs[-1].number
            return None if staged is None else Bound(newest, Lsn(staged[newest]))

        return SimpleNamespace(files=tuple(left), trimmed=trimmed, find_staged=find_staged)


def _plan_rewrite(
    folder: LakePlace, table: Any, plan: TablePlan, above: LogRange, limits: MergeLimits
) -> FileRewrite | str:
    """What `plan_rewrite` decides: whether the job of the round rewrites the files of a table."""
    del table
    if plan.before != plan.schema or not can_fold_by_arrow(plan):
        return "it is Spark's"
    changes = LogSlice(str(plan.table), {}, {}, above.low, above.high)
    return FileRewrite(
        folder,
        0,
        (),
        (),
        (),
        has_whole_old=False,
        lacks_values=False,
        changes=changes,
        max_bytes=limits.rewrite_bytes,
    )


@contextmanager
def _rewriting_files(
    _: Any, rewrites: Sequence[FileRewrite], limits: MergeLimits
) -> Iterator[Mapping[str, RewrittenFiles]]:
    """The job of a round: it commits nothing, so what it leaves is nothing that others see."""
    del limits
    yield {
        one.changes.table: RewrittenFiles(
            Attempt(one.folder, one.version, "simulated"), (), (), 0, 0, 0, 0.0
        )
        for one in rewrites
    }


def _merge_rewritten(merge: TableMerge, _: RewrittenFiles) -> TableMergeResult:
    assert merge.existing is not None
    return _commit_changes(merge, WritePlan.REWRITE_FILES)


def _merge_by_spark(merge: TableMerge, *, refusal: str | None) -> TableMergeResult:
    del refusal
    return _commit_changes(merge, WritePlan.REWRITE)


def _commit_changes(merge: TableMerge, way: WritePlan) -> TableMergeResult:
    """Commit the changes of a table upon the version at which the round opened it."""
    plan, existing = merge.plan, cast("Opened | None", merge.existing)
    world, path = World.now, merge.path
    if str(plan.table) in world.tables.failing:
        raise OSError("simulated")
    counts = existing is not None and plan.before is not None and plan.truncated_at is None
    base = existing.newest.rows if existing is not None and counts else {}
    rows = fold_changes(plan, base)
    world.scheduler.pause(f"commits {plan.table} up to {plan.upper.lsn}")
    reached = {} if existing is None else dict(existing.newest.reached)
    assert plan.schema is not None
    reached |= {merge.epoch.app: int(plan.upper.lsn)}
    kept = world.tables.versions.setdefault(path, [])
    if len(kept) != (0 if existing is None else len(existing.versions)):
        raise AssertionError("two merges of one table at once")
    kept.append(Version(reached, plan.schema, rows))
    return TableMergeResult(len(kept) - 1, len(rows), 0, 0, 0, {}, 0.0, way)


def _work_out(plan: TablePlan, target: _Rows | None) -> SimpleNamespace:
    base = {} if target is None else target.rows
    return SimpleNamespace(rows=_Rows(fold_changes(plan, base)), carried=frozenset())


def _find_sweeps(frame: Frame) -> tuple[Sweep, ...]:
    return (cast("Any", None),) if any(e.op == "sweep" for e in frame.entries) else ()


def _write_states(_: Any, states: list[StateRecord]) -> None:
    World.now.tables.states |= {state.table: state for state in states}


def _write_cut(_: Any, cut: Cut) -> None:
    World.now.scheduler.note(
        f"cut at {cut.bound.lsn}: "
        + ", ".join(f"{t} {p.version} at {p.bound.lsn}" for t, p in sorted(cut.places.items()))
    )
    World.now.tables.cuts.append(cut)


def install(monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: C901 - One line for each name.
    """Have rounds, cuts and plans use the tables of the world that was made last."""
    lacking = SimpleNamespace(list_incomplete=lambda *_: {}, find_incomplete=lambda *_: None)
    for module in (targets, as_of, table_plan, rebuild):
        monkeypatch.setattr(module, "F", frames.Functions)
        monkeypatch.setattr(module, "summarize", frames.summarize)
    for module in (rounds, as_of, older_targets):
        monkeypatch.setattr(module, "LogFiles", _LogFiles)
    for module in (opened_target, as_of, stored, older_targets):
        monkeypatch.setattr(module, "open_current", _open_table)
    for module in (rounds, as_of, stored):
        monkeypatch.setattr(module, "find_cut", _find_cut)
    for module in (rounds, stored, round_start):
        monkeypatch.setattr(module, "read_states", lambda _: dict(World.now.tables.states))
        monkeypatch.setattr(module, "read_completeness", lambda _: lacking, raising=False)
    for module in (targets, as_of):
        monkeypatch.setattr(module, "read_schema", lambda opened: opened.newest.schema)
        monkeypatch.setattr(module, "read_log", _read_log)
    monkeypatch.setattr(older_targets, "has_table_schema", lambda _: True)
    for module in (merge, older_targets, as_of):
        monkeypatch.setattr(module, "find_mode", lambda _: CURRENT)
    for module in (targets, rebuild):
        monkeypatch.setattr(module, "is_after", frames.is_after)
    monkeypatch.setattr(announcements, "find_first", frames.find_first)
    monkeypatch.setattr(table_plan, "find_sweeps", _find_sweeps)
    monkeypatch.setattr(table_plan, "drop_superseded", lambda sweeps: sweeps)
    for module in (rounds, targets):
        monkeypatch.setattr(module, "RoundLog", _RoundLog)
    for module in (rounds, opened_target):
        monkeypatch.setattr(module, "find_jvm", lambda _: None)
    monkeypatch.setattr(merge, "plan_rewrite", _plan_rewrite)
    monkeypatch.setattr(targets, "rewriting_files", _rewriting_files)
    monkeypatch.setattr(targets, "merge_rewritten", _merge_rewritten)
    monkeypatch.setattr(targets, "run_side_by_side", lambda _, jobs: [job() for job in jobs])
    monkeypatch.setattr(targets, "merge_by_spark", _merge_by_spark)
    monkeypatch.setattr(opened_target, "require_durable", lambda *_, **__: None)
    monkeypatch.setattr(rounds, "write_states", _write_states)
    monkeypatch.setattr(rounds, "write_cut", _write_cut)
    monkeypatch.setattr(rounds, "reporting_jvm_death", lambda _: nullcontext())
    monkeypatch.setattr(rounds, "requiring_executors", lambda _: nullcontext())
    monkeypatch.setattr(rounds, "reach", _reach)
    monkeypatch.setattr(as_of, "_read_version", _read_version)
    monkeypatch.setattr(stored, "_is_trimmed", _is_below_trim)
    for module in (as_of, stored):
        monkeypatch.setattr(module, "open_version", _open_version)
    monkeypatch.setattr(as_of, "widen", lambda base, _: base)
    monkeypatch.setattr(as_of, "fold_plan", _work_out)
    monkeypatch.setattr(as_of, "apply_rows", lambda _, rows, *__, **___: rows)
    monkeypatch.setattr(mode, "table_fields", lambda _: ())


def _is_below_trim(_: Any, low: Bound) -> bool:
    trimmed = World.now.log.trimmed
    return trimmed is not None and low < trimmed


def _open_table(path: LakePlace) -> Opened | None:
    return World.now.tables.open(path)


def _reach(point: str) -> None:
    World.now.scheduler.pause(point)


def _find_cut(_: Any, at: Bound | None = None) -> Cut | None:
    return World.now.tables.find_cut(at)


def _read_log(_: Any, __: Any, low: Bound | None = None, upper: Bound | None = None) -> Frame:
    assert upper is not None
    entries = (e for e in World.now.log.entries if not _is_trimmed(e))
    return Frame(tuple(e for e in entries if is_between(e, low, upper)))


def _is_trimmed(entry: Entry) -> bool:
    trimmed = World.now.log.trimmed
    return trimmed is not None and is_between(entry, None, trimmed)


def _open_version(lake: SimulatedLake, table: TableName, version: int) -> Opened:
    return Opened(tuple(World.now.tables.versions[lake.locate(table)][: version + 1]))


def _read_version(_: Any, __: SimulatedLake, ___: TableName, opened: Opened, ____: Mode) -> _Rows:
    return _Rows(opened.newest.rows)
