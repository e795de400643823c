"""`walgate merge` as a person runs it: a round, and following until it is told to stop."""

from __future__ import annotations

import pytest

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline
from tests.walgate_command import run_walgate, walgate_command, walgate_environment

DEADLINE_S = 180


@pytest.mark.timeout(600)
def test_merge_follows_what_arrives_and_drains_when_told_to_stop(pipeline: Pipeline) -> None:
    database, folder = pipeline.database, pipeline.folder
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("insert into orders values (1, 'first')")
    pipeline.catch_up()
    following = ChildProcess(
        walgate_command("merge", "--follow", "--config", folder / "walgate.toml"),
        log=folder / "merge.log",
        environment=walgate_environment(),
    )
    cuts = pipeline.root / "ledger" / "cuts" / "_delta_log"

    def count_cuts() -> int:
        assert following.is_running, following.output()
        return len(list(cuts.glob("*.json")))

    wait_for(lambda: count_cuts() > 0, DEADLINE_S, "the first cut")
    before = count_cuts()
    database.execute("insert into orders values (2, 'second')")
    pipeline.catch_up()
    wait_for(lambda: count_cuts() > before, DEADLINE_S, "the next cut")
    assert following.stop() == 0, following.output()

    answer = run_walgate("sql", "select id, note from orders order by id", folder=folder)
    assert answer.exit_code == 0, answer
    assert answer.stdout.splitlines() == ["id\tnote", "1\tfirst", "2\tsecond"]
