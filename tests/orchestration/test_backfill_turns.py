"""Which queued tables a tick launches runs for: pure decisions."""

from __future__ import annotations

from typing import Any

import dagster as dg

from cdc_core.vocabulary import TableName
from orchestration.backfill.queue import QueuedTable
from orchestration.backfill.schedule import OP_NAME, LaunchPlan, plan_launches
from orchestration.runs.relaunch import RunRecord

NOW = 1_000_000.0
Status = dg.DagsterRunStatus
MB, GB = 1 << 20, 1 << 30


def make_run(
    number: int, *names: str, status: dg.DagsterRunStatus, ago: float = 1.0, retry: str = "LATER"
) -> RunRecord:
    """Make a run of one partition, or of several tables by their names."""
    tables = [f"public/{name}" for name in names]
    config: dict[str, Any] = {"ops": {OP_NAME: {"config": {"tables": tables}}}}
    (partition, named) = (tables[0], {}) if len(tables) == 1 else (None, config)
    return RunRecord(f"{number:08}-run", status, None, retry, NOW - 60, NOW - ago, partition, named)


def wait(name: str, size: int = GB, *, is_anew: bool = False) -> QueuedTable:
    return QueuedTable(TableName("public", name), "it was never read", size, is_anew)


def choose(waiting: str | list[QueuedTable], runs: list[RunRecord]) -> LaunchPlan:
    """Let tables wait, large ones by their names alone; runs are given newest first."""
    listed = [wait(name) for name in waiting] if isinstance(waiting, str) else waiting
    return plan_launches(listed, runs, now=NOW)


def launched(turn: LaunchPlan) -> list[list[str]]:
    return [[key.removeprefix("public/") for key in group.partitions] for group in turn.groups]


def keys(turn: LaunchPlan) -> list[str]:
    return [group.run_key for group in turn.groups]


def test_the_first_few_that_wait_have_their_turn() -> None:
    turn = choose("abc", [])
    assert launched(turn) == [["a"], ["b"]]
    assert keys(turn) == ["public/a first", "public/b first"]
    assert launched(choose("", [])) == []


def test_small_tables_share_a_run_and_large_ones_have_their_own() -> None:
    small = [wait(f"s{number}", MB) for number in range(7)]
    assert launched(choose(small, [])) == [[f"s{number}" for number in range(7)]]
    waiting = [*small[:2], wait("half", GB // 2), wait("most", GB - MB), wait("large", 9 * GB)]
    assert launched(choose(waiting, [])) == [["s0", "s1", "half"], ["most"]]
    assert launched(choose([wait("s0", MB), wait("large", 9 * GB)], [])) == [["s0"], ["large"]]
    many = [wait(f"t{number:03}", 0) for number in range(450)]
    assert [len(group) for group in launched(choose(many, []))] == [200, 200]


def test_tables_to_be_read_anew_share_no_run_with_those_that_go_on() -> None:
    waiting = [wait("a", MB), wait("b", MB, is_anew=True), wait("c", MB), wait("d", MB)]
    turn = choose(waiting, [])
    assert launched(turn) == [["a", "c", "d"], ["b"]]
    assert [group.is_anew for group in turn.groups] == [False, True]


def test_each_table_has_one_run_at_a_time_and_few_runs_read() -> None:
    runs = [make_run(2, "b", status=Status.QUEUED), make_run(1, "a", "x", status=Status.STARTED)]
    turn = choose("abcx", runs)
    assert launched(turn) == []
    assert "run 00000001 reads 2 tables" in turn.reason
    assert "run 00000002 reads public/b" in turn.reason
    assert "4 tables wait: at most 2 runs read at a time" in turn.reason
    assert launched(choose("abcx", runs[1:])) == [["b"]]
    assert launched(choose("ax", runs[1:])) == []


def test_a_killed_run_is_followed_at_once_under_a_key_of_its_own() -> None:
    runs = [make_run(1, "a", status=Status.FAILURE)]
    assert keys(choose("a", runs)) == ["public/a after:00000001-run"]
    # Those that shared it share the next, too.
    runs = [make_run(1, "a", "b", status=Status.FAILURE)]
    assert launched(choose([wait("a", MB), wait("b", MB)], runs)) == [["a", "b"]]


def test_what_fails_again_has_a_run_of_its_own() -> None:
    runs = [make_run(n, "a", "b", status=Status.FAILURE, ago=90) for n in (2, 1)]
    waiting = [wait("a", MB), wait("b", MB), wait("c", MB), wait("d", MB)]
    assert launched(choose(waiting, runs)) == [["a"], ["b"]]
    assert launched(choose(waiting[1:], runs)) == [["b"], ["c", "d"]]


def test_what_fails_again_waits_longer_and_lets_others_pass() -> None:
    runs = [make_run(number, "a", status=Status.FAILURE) for number in (3, 2, 1)]
    assert launched(choose("ab", runs)) == [["b"]]
    told = "public/a waits 9 s: run 00000003, try 3, ended FAILURE"
    assert told in choose("a", runs).reason
    long_ago = [make_run(number, "a", status=Status.FAILURE, ago=11) for number in (3, 2, 1)]
    assert keys(choose("a", long_ago)) == ["public/a after:00000003-run"]


def test_what_needs_a_person_is_tried_again_after_minutes() -> None:
    runs = [make_run(1, "a", status=Status.FAILURE, ago=200, retry="AFTER_FIX")]
    assert launched(choose("a", runs)) == []
    runs = [make_run(1, "a", status=Status.FAILURE, ago=301, retry="AFTER_FIX")]
    assert launched(choose("a", runs)) == [["a"]]


def test_runs_that_ended_well_and_changed_nothing_are_spaced_out_too() -> None:
    runs = [make_run(number, "a", status=Status.SUCCESS) for number in (2, 1)]
    assert launched(choose("a", runs)) == []
    yesterday = [make_run(number, "a", status=Status.SUCCESS, ago=86_400) for number in (2, 1)]
    assert keys(choose("a", yesterday)) == ["public/a after:00000002-run"]


def test_runs_dated_far_ahead_keep_no_table_waiting() -> None:
    ahead = -365 * 86_400.0
    runs = [make_run(n, "a", status=Status.FAILURE, ago=ahead) for n in (3, 2, 1)]
    assert keys(choose("a", runs)) == ["public/a after:00000003-run"]
    # Nor do they count as tries when the next one has failed.
    runs = [make_run(4, "a", status=Status.FAILURE), *runs]
    assert keys(choose("a", runs)) == ["public/a after:00000004-run"]
