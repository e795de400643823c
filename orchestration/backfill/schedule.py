"""Decides which of the tables that wait for a backfill are read next, and which share a run. Pure.

A run needs a process and seconds to start, so small tables share a run, in the order in which they
wait. A table that still waits after two runs gets a run of its own: it disturbs no other table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestration.backfill.queue import QueuedTable
from orchestration.runs.known_tables import partition_key
from orchestration.runs.relaunch import RunRecord, choose_pause, find_time_left, has_ended_within

# Dagster's name for the op of the asset. No job may have this name.
OP_NAME = "backfill"
# Runs at a time: each has its own connections and process.
MAX_AT_ONCE = 2
# What a run reads in about a minute. A larger table has a run of its own.
_TOGETHER_BYTES = 1 << 30
_TOGETHER_TABLES = 200
_ALONE_AFTER = 2
# Older tries do not count.
RECENT_S = 3600.0


@dataclass(slots=True)
class Group:
    """The partitions that one run reads, and the key under which Dagster launches the run once."""

    run_key: str
    is_anew: bool
    partitions: list[str]
    size: int
    is_closed: bool = False

    def takes(self, one: QueuedTable) -> bool:
        """Whether a table may share the run."""
        return (
            not self.is_closed
            and one.is_anew == self.is_anew
            and self.size + one.size <= _TOGETHER_BYTES
            and len(self.partitions) < _TOGETHER_TABLES
        )


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The runs to launch, and why other tables wait."""

    groups: list[Group] = field(default_factory=list)
    reason: str = ""


def find_partitions_of(run: RunRecord) -> set[str]:
    """The partitions of asset `backfill` that a run reads; empty for a run of anything else."""
    config = run.config.get("ops", {}).get(OP_NAME, {}).get("config", {})
    return {*config.get("tables", ())} | ({run.partition} if run.partition else set())


def plan_launches(
    waiting: Sequence[QueuedTable], runs: Sequence[RunRecord], *, now: float
) -> LaunchPlan:
    """Choose the runs to launch for the waiting tables, in order, up to `MAX_AT_ONCE` runs.

    `runs` are those of the last hour and all that are under way, of any table, newest first.
    A table that still waits after a run waits longer after each further run.
    """
    active = [run for run in runs if run.is_active]
    busy = {partition for run in active for partition in find_partitions_of(run)}
    groups: list[Group] = []
    reasons = [f"run {run.short_id} reads {_describe(find_partitions_of(run))}" for run in active]
    for one in waiting:
        key = partition_key(one.table)
        if key in busy:
            continue
        own = [run for run in runs if key in find_partitions_of(run)]
        tries = [run for run in own if has_ended_within(run, RECENT_S, now=now)]
        pause = choose_pause(len(tries), own[0].retry) if tries else 0.0
        left = find_time_left(own[0].ended_at, pause, now=now) if tries else 0.0
        if left > 0:
            reasons.append(
                f"{key} waits {left:.0f} s: run {own[0].short_id}, try {len(tries)},"
                f" ended {own[0].status.value}"
            )
            continue
        is_alone = len(tries) >= _ALONE_AFTER
        shared = None if is_alone else next((g for g in groups if g.takes(one)), None)
        if shared is not None:
            shared.partitions.append(key)
            shared.size += one.size
        elif len(active) + len(groups) < MAX_AT_ONCE:
            # No earlier run has this key, so Dagster carries out the request once.
            run_key = f"{key} after:{runs[0].run_id}" if runs else f"{key} first"
            groups.append(Group(run_key, one.is_anew, [key], one.size, is_closed=is_alone))
        else:
            reasons.append(f"{len(waiting)} tables wait: at most {MAX_AT_ONCE} runs read at a time")
            break
    return LaunchPlan(groups, "; ".join(reasons))


def _describe(partitions: set[str]) -> str:
    return f"{len(partitions)} tables" if len(partitions) > 1 else "".join(partitions)
