"""No history ends with wrong data that nothing names: all of small worlds, seeds of larger ones.

`pytest -m soak` plays a million of the larger ones. A failure prints its shrunk history and its
choices. To play it again, call `histories.play(worlds.play_…, Given(choices))` in a
test here.
"""

from __future__ import annotations

import pytest

from tests.simulation import worlds
from tests.simulation.histories import Failure, Play, explore, search, shrink

# The most deviations from the plainest history, by world.
DEVIATIONS: dict[Play, int] = {
    worlds.play_small: 2,
    worlds.play_altered: 2,
    worlds.play_altered_late: 3,
    worlds.play_small_merges: 2,
}
# All deviations are within so many choices after the first; in soak they may be anywhere.
WITHIN = 10
SEEDS: dict[Play, int] = {
    worlds.play_backfill: 3_000,
    worlds.play_recovered: 1_000,
    worlds.play_merges: 3_000,
}
SOAK_SEEDS: dict[Play, int] = {
    worlds.play_backfill: 600_000,
    worlds.play_recovered: 100_000,
    worlds.play_merges: 300_000,
}
# Two processes share the parts.
PARTS = 8
SOAK_PARTS = 100


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("play", DEVIATIONS, ids=lambda play: play.__name__)
@pytest.mark.usefixtures("_simulated")
def test_no_history_of_a_small_world_ends_wrong(play: Play, part: int) -> None:
    count = 0
    deviations = DEVIATIONS[play]
    for failure in explore(play, deviations=deviations, within=WITHIN, part=part, parts=PARTS):
        count += 1
        _require_none(play, failure)
    assert count > 1


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize("play", DEVIATIONS, ids=lambda play: play.__name__)
@pytest.mark.usefixtures("_simulated")
def test_no_history_of_a_small_world_ends_wrong_wherever_it_deviates(play: Play, part: int) -> None:
    for failure in explore(play, deviations=DEVIATIONS[play], part=part, parts=SOAK_PARTS):
        _require_none(play, failure)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("play", SEEDS, ids=lambda play: play.__name__)
@pytest.mark.usefixtures("_simulated")
def test_no_seeded_history_ends_wrong(play: Play, part: int) -> None:
    _require_none(play, search(play, range(part, SEEDS[play], PARTS)))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(SOAK_PARTS))
@pytest.mark.parametrize("play", SOAK_SEEDS, ids=lambda play: play.__name__)
@pytest.mark.usefixtures("_simulated")
def test_no_history_of_a_million_ends_wrong(play: Play, part: int) -> None:
    _require_none(play, search(play, range(part, SOAK_SEEDS[play], SOAK_PARTS)))


def _require_none(play: Play, failure: Failure | None) -> None:
    if failure is not None:
        pytest.fail(str(shrink(play, failure)))
