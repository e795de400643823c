"""Each fix is needed: without it the simulator finds a history with wrong data, and shrinks it."""

from __future__ import annotations

import pytest

from tests.simulation.histories import Failure, explore, play, search, shrink
from tests.simulation.mutations import MUTATIONS, Mutation
from tests.simulation.scheduler import Given

MAX_SEEDS = 20_000


# The search for a history that fails without these takes most of a minute.
LONG = {"line_3_shared_version"}


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(one, id=one.name, marks=pytest.mark.soak if one.name in LONG else ())
        for one in MUTATIONS
    ],
)
@pytest.mark.usefixtures("_simulated")
def test_a_mend_that_is_taken_out_is_missed(
    mutation: Mutation, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.take_out(monkeypatch)
    found = _find(mutation)
    assert found is not None, f"{mutation.name}: no history failed"
    shrunk = shrink(mutation.play, found)
    print(f"{mutation.name}: {shrunk}")  # noqa: T201 - `pytest -s` shows the history.
    assert shrunk.reason.startswith("WrongData")
    assert sum(map(bool, shrunk.choices)) <= sum(map(bool, found.choices))
    again = play(mutation.play, Given(shrunk.choices))
    assert again is not None
    assert (again.reason, again.steps) == (shrunk.reason, shrunk.steps)


def _find(mutation: Mutation) -> Failure | None:
    if not mutation.deviations:
        return search(mutation.play, range(MAX_SEEDS))
    return next(filter(None, explore(mutation.play, deviations=mutation.deviations)), None)
