"""Which queued tables a tick launches runs for: pure decisions."""

from __future__ import annotations

import dagster as dg

from orchestration.backfill_sensor import Turn, choose_turn
from orchestration.relaunch import Seen

NOW = 1_000_000.0
Status = dg.DagsterRunStatus


def make_run(
    number: int, key: str, status: dg.DagsterRunStatus, *, ago: float = 1.0, retry: str = "LATER"
) -> Seen:
    return Seen(f"{number:08}-run", status, None, retry, NOW - 60, NOW - ago, key)


def choose(waiting: list[str], runs: list[Seen]) -> Turn:
    """Runs are given newest first."""
    return choose_turn(
        waiting,
        [run for run in runs if run.is_active],
        lambda key: [run for run in runs if run.partition == key],
        now=NOW,
    )


def test_the_first_few_that_wait_have_their_turn() -> None:
    turn = choose(["a", "b", "c"], [])
    assert turn.launched == [("a", "a first"), ("b", "b first")]
    assert choose([], []).launched == []


def test_each_table_has_one_run_at_a_time_and_few_have_one() -> None:
    runs = [make_run(2, "b", Status.QUEUED), make_run(1, "a", Status.STARTED)]
    turn = choose(["a", "b", "c"], runs)
    assert turn.launched == []
    assert "run 00000001 reads a" in turn.reason
    assert "3 tables wait, 2 are read at a time" in turn.reason
    assert choose(["a", "b", "c"], runs[1:]).launched == [("b", "b first")]
    assert choose(["a"], runs[1:]).launched == []


def test_a_killed_run_is_followed_at_once_under_a_key_of_its_own() -> None:
    runs = [make_run(1, "a", Status.FAILURE)]
    assert choose(["a"], runs).launched == [("a", "a after:00000001-run")]


def test_what_fails_again_waits_longer_and_lets_others_pass() -> None:
    runs = [make_run(number, "a", Status.FAILURE) for number in (3, 2, 1)]
    turn = choose(["a", "b"], runs)
    assert turn.launched == [("b", "b first")]
    assert "a waits 9 s: run 00000003, try 3, ended FAILURE" in choose(["a"], runs).reason
    long_ago = [make_run(number, "a", Status.FAILURE, ago=11) for number in (3, 2, 1)]
    assert choose(["a"], long_ago).launched == [("a", "a after:00000003-run")]


def test_what_needs_a_person_is_tried_again_after_minutes() -> None:
    runs = [make_run(1, "a", Status.FAILURE, ago=200, retry="AFTER_FIX")]
    assert choose(["a"], runs).launched == []
    runs = [make_run(1, "a", Status.FAILURE, ago=301, retry="AFTER_FIX")]
    assert choose(["a"], runs).launched


def test_runs_that_ended_well_and_changed_nothing_are_spaced_out_too() -> None:
    runs = [make_run(number, "a", Status.SUCCESS) for number in (2, 1)]
    assert choose(["a"], runs).launched == []
    yesterday = [make_run(number, "a", Status.SUCCESS, ago=86_400) for number in (2, 1)]
    assert choose(["a"], yesterday).launched == [("a", "a after:00000002-run")]
