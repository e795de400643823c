"""The lake's folder is empty, or gone, where a log was: its volume is not mounted.

A log begun there would take the slot's changes away from the one that is elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.fix_pipeline import Pipeline
from tests.walgate_command import Answer, run_walgate

MARK = ".walgate/adopted.json"


@pytest.fixture
def staged(pipeline: Pipeline) -> Pipeline:
    """Lend a pipeline with something in its log."""
    pipeline.database.execute("create table orders (id bigserial primary key, note text)")
    insert(pipeline)
    pipeline.catch_up()
    return pipeline


def insert(pipeline: Pipeline) -> None:
    """Insert a row."""
    pipeline.database.execute("insert into orders (note) values ('x')")


def put_back(pipeline: Pipeline, away: Path) -> None:
    """Mount the lake again."""
    if pipeline.root.exists():
        pipeline.root.rmdir()
    away.rename(pipeline.root)


def replicate(pipeline: Pipeline) -> Answer:
    """Try to stage what is there."""
    return run_walgate("replicate", "--until-current", folder=pipeline.folder)


@pytest.mark.parametrize("is_left", [True, False], ids=["empty", "gone"])
def test_a_lake_that_is_away_is_refused_before_the_slot_is_touched(
    staged: Pipeline, *, is_left: bool
) -> None:
    before = staged.slot_facts()
    away = staged.root.rename(staged.folder / "unmounted")
    if is_left:
        staged.root.mkdir()
    insert(staged)
    answer = replicate(staged)
    assert answer.exit_code == 4, answer
    complaint = answer.complaints[-1]
    filled = f"capture filled it from slot {staged.slot} of server"
    assert f"the log is gone from {staged.root}: {filled}" in complaint
    assert ("found an empty folder" if is_left else "found no such folder") in complaint
    assert "fix: mount or restore the lake" in complaint
    assert "run `walgate recover`" in complaint
    assert not is_left or not list(staged.root.iterdir()), "something was made in it"
    assert staged.slot_facts() == before
    put_back(staged, away)
    staged.catch_up()
    assert staged.require_truth() == 2


def test_a_lake_that_goes_away_under_a_capture_is_waited_for(staged: Pipeline) -> None:
    child = staged.start_streaming()
    away = staged.root.rename(staged.folder / "unmounted")
    staged.root.mkdir()
    # The first of this table that this lake sees: a relation would be written too.
    staged.database.execute("create table parcels (id int primary key)")
    staged.database.execute("insert into parcels values (1)")
    staged.wait_for_line(child, "staging failed")
    assert not list(staged.root.iterdir()), "something was made in it"
    put_back(staged, away)
    staged.wait_until_staged(staged.current_lsn())
    staged.finish(child)
    assert staged.require_truth() == 2
    assert DeltaTable(staged.root / "staging" / "relations").to_pyarrow_table().num_rows == 2


def test_without_this_host_s_state_an_empty_folder_begins_a_log(staged: Pipeline) -> None:
    (staged.folder / MARK).write_text("not legible")
    staged.root.rename(staged.folder / "old")
    assert "slot adopted" in staged.catch_up().stderr
