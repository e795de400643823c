"""Watched on the wire: nothing is ever confirmed that staging does not hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deadline import wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.fix_proxy import WireProxy
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.truth import read_reached, read_staged
from tests.wire import StatusUpdate


# The load goes on while a busy machine starts a capture, and all of its transactions are compared.
@pytest.mark.timeout(900)
def test_f04_every_flush_ever_sent_is_at_most_what_staging_held_at_that_moment(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    make_proxy: Callable[..., WireProxy],
    tmp_path: Path,
    seed: int,
) -> None:
    seen: list[tuple[int, int]] = []
    pipelines: list[Pipeline] = []

    def compare(status: StatusUpdate) -> None:
        staged = read_staged(pipelines[0].root)
        assert staged is not None, "a status was sent before there was an epoch"
        seen.append((status.flushed, staged))

    proxy = make_proxy(database18.server.port, compare)
    dsn = database18.server.tcp_dsn(database18.name, proxy.port)
    rng = random.Random(seed)
    scripts = prepare(database18, tmp_path)
    pipelines.append(pipeline := make_pipeline(database18, dsn=dsn))
    with running_load(database18, scripts, seed=rng.randrange(2**31)):
        # Killed after a commit and before its flush, so that the next run begins with a replay.
        first = pipeline.start_streaming(WALGATE_CRASH_AT="after_delta_commit:4")
        first.wait(DEADLINE_S)
        second = pipeline.start_streaming(WALGATE_CAPTURE__BATCH_ROWS="50")
        pipeline.wait_until_staged(pipeline.current_lsn())
        proxy.cut()
        wait_for(lambda: second.output().count("capture started") > 1, DEADLINE_S, "a new session")
        pipeline.wait_until_staged(pipeline.current_lsn())
        second.kill()
        third = pipeline.start_streaming(WALGATE_CAPTURE__SPOOL_BYTES="10kB")
        pipeline.wait_until_staged(pipeline.current_lsn())
        pipeline.finish(third)
    pipeline.catch_up()
    too_far = [(flushed, staged) for flushed, staged in seen if flushed > staged]
    assert not too_far, f"confirmed past the staged LSN: {too_far[:3]}"
    # What the proxy read was read a moment later; an end that no commit reached is wrong as well.
    flushes = {flushed for flushed, _ in seen}
    assert flushes <= read_reached(pipeline.root) | {min(flushes)}
    assert len(flushes) > 5, "hardly anything was confirmed"
    assert pipeline.slot_facts()["confirmed"] == pipeline.staged()
    pipeline.require_truth()
