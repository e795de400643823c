"""F3: the server crashes before it has saved what was confirmed, and sends it all again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.postgres_server import PostgresServer


@pytest.mark.parametrize("version", [pytest.param(15, marks=pytest.mark.soak), 18])
def test_f03_what_is_sent_again_is_known_and_not_staged_twice(
    private_postgres: Callable[..., PostgresServer],
    make_pipeline: Callable[..., Pipeline],
    version: int,
) -> None:
    server = private_postgres(version)
    database = server.create_database("shop")
    database.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database)
    child = pipeline.start_streaming()
    for _ in range(5):
        database.execute("insert into orders (note) values ('x')")
    pipeline.wait_until_staged(pipeline.current_lsn())
    staged = pipeline.staged()
    wait_for(lambda: pipeline.slot_facts()["confirmed"] >= staged, DEADLINE_S, "it to be confirmed")
    child.kill()
    server.restart("immediate")
    assert pipeline.slot_facts()["confirmed"] < staged, "the confirmation was saved"
    database.execute("insert into orders (note) values ('later')")
    # Cut otherwise than before, so that no batch can be taken for one of those.
    pipeline.catch_up(WALGATE_CAPTURE__BATCH_ROWS="1")
    assert pipeline.require_truth() == 6
