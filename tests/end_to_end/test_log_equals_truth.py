"""The log is what the source committed, transaction by transaction, however capture is killed."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.child_process import ChildProcess
from tests.deadline import DeadlineMissedError, wait_for
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.truth import require_whole_commits

KILLS = 1
MANY_KILLS = 30
POINTS = (
    "before_delta_commit",
    "after_delta_commit",
    "after_flush",
    "while_spooling",
    "during_shutdown",
)


def draw_sizes(rng: random.Random) -> dict[str, str]:
    """Draw the settings by which batches are cut, so that a replay is cut in another way."""
    return {
        "WALGATE_CAPTURE__BATCH_SECONDS": rng.choice(["10ms", "100ms", "700ms"]),
        "WALGATE_CAPTURE__BATCH_ROWS": str(rng.choice([1, 7, 300, 100_000])),
        "WALGATE_CAPTURE__SPOOL_BYTES": rng.choice(["1kB", "40kB", "128MB"]),
        "WALGATE_CAPTURE__BATCH_BYTES": rng.choice(["4kB", "300kB", "64MB"]),
    }


def kill_after(child: ChildProcess, seconds: float) -> None:
    """Kill a capture after some time; it must not have ended by itself."""
    with pytest.raises(DeadlineMissedError):
        wait_for(lambda: not child.is_running, seconds, "the moment to kill")
    child.kill()


# The load goes on while a busy machine starts a capture, and all of its transactions are compared.
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.soak)])
def test_f01_log_equals_truth_after_kills_at_random_moments(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    tmp_path: Path,
    seed: int,
    kills: int,
) -> None:
    rng = random.Random(seed)
    scripts = prepare(database18, tmp_path)
    pipeline = make_pipeline(database18)
    with running_load(database18, scripts, seed=rng.randrange(2**31)):
        for _ in range(kills):
            child = pipeline.start_streaming(**draw_sizes(rng))
            kill_after(child, rng.uniform(0.05, 2.5))
    # Not with drawn sizes: the load has gone on for minutes if the lake is in a slow store, and one
    # commit for each of 25,000 transactions would take hours.
    pipeline.catch_up()
    assert pipeline.require_truth() > 50 * kills
    assert require_whole_commits(pipeline.root) > 1


def test_f01_f02_log_equals_truth_after_a_kill_at_each_named_point(
    database18: Database, make_pipeline: Callable[..., Pipeline], tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    scripts = prepare(database18, tmp_path)
    pipeline = make_pipeline(database18)
    with running_load(database18, scripts, seed=rng.randrange(2**31)):
        for point in rng.sample(POINTS, len(POINTS)):
            sizes = draw_sizes(rng)
            if point == "while_spooling":
                sizes["WALGATE_CAPTURE__SPOOL_BYTES"] = "1kB"
            # The first shutdown is the only one; elsewhere the third arrival is in mid-stream.
            arrival = 1 if point == "during_shutdown" else 3
            child = pipeline.start_streaming(**sizes, WALGATE_CRASH_AT=f"{point}:{arrival}")
            if point == "during_shutdown":
                pipeline.wait_until_staged(pipeline.staged() + 1)
                child.send(signal.SIGTERM)
            assert child.wait(DEADLINE_S) == -signal.SIGKILL, child.output()
    pipeline.catch_up(**draw_sizes(rng))
    assert pipeline.require_truth() > 100
    require_whole_commits(pipeline.root)
