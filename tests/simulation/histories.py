"""Plays histories: one by its choices, all of a small world, or many by seeds; and shrinks one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from tests.simulation.scheduler import Choices, Given, Seeded, TooLong, list_steps

# After some 300 attempts a history of a hundred choices gets no shorter.
MAX_ATTEMPTS = 500

# Builds a world, runs it to its end and judges it. Raises: whatever is wrong.
Play: TypeAlias = Callable[[Choices], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A history that ended wrong, by its choices."""

    choices: tuple[int, ...]
    reason: str
    steps: str

    def __str__(self) -> str:
        """For a person."""
        return f"{self.reason}\nchoices: {list(self.choices)}\n{self.steps}"


def play(play_one: Play, choices: Given | Seeded) -> Failure | None:
    """Play one history; give its failure, or None. A history that is too long does not fail."""
    try:
        play_one(choices)
    except TooLong:
        return None
    except Exception as error:  # noqa: BLE001 - whatever a real part raises is a failure, too.
        reason = f"{type(error).__name__}: {error}"
        return Failure(tuple(choices.taken), reason, list_steps(choices.steps))
    return None


def explore(
    play_one: Play, *, deviations: int, within: int | None = None, part: int = 0, parts: int = 1
) -> Iterator[Failure | None]:
    """Play every history of a world with at most `deviations` deviations from the plainest one.

    If `within` is given, all deviations of a history are within so many choices after the first.
    With `parts`, each part plays a share of the histories, chosen by their first deviation.
    """
    plainest = Given(())
    found = play(play_one, plainest)
    if part == 0:
        yield found
    turn = 0
    for at, count in enumerate(plainest.counts):
        for value in range(1, count):
            turn += 1
            if turn % parts == part and deviations:
                yield from _explore_from(play_one, (*[0] * at, value), deviations - 1, within)


def _explore_from(
    play_one: Play, start: tuple[int, ...], more: int, within: int | None
) -> Iterator[Failure | None]:
    """Play every history that begins with `start` and has at most `more` further deviations."""
    wanted = start
    while True:
        choices = Given(wanted)
        yield play(play_one, choices)
        taken, counts = choices.taken, choices.counts
        end = len(taken) if within is None else min(len(taken), len(start) + within)
        for at in reversed(range(len(start), end)):
            used = sum(map(bool, taken[len(start) : at]))
            if taken[at] + 1 < counts[at] and used < more:
                wanted = (*taken[:at], taken[at] + 1)
                break
        else:
            return


def search(play_one: Play, seeds: Sequence[int]) -> Failure | None:
    """The first seed's history that fails; None where none does."""
    for seed in seeds:
        failure = play(play_one, Seeded(seed))
        if failure is not None:
            return failure
    return None


def shrink(play_one: Play, failure: Failure) -> Failure:
    """Find the same failure with fewer deviations and a shorter list of choices."""
    kind = failure.reason.partition(":")[0]
    best = failure
    left = MAX_ATTEMPTS

    def attempt(choices: Sequence[int]) -> bool:
        nonlocal best, left
        left -= 1
        found = play(play_one, Given(choices))
        if found is None or found.reason.partition(":")[0] != kind:
            return False
        best = replace(found, choices=_strip(choices))
        return True

    assert attempt(_strip(failure.choices)), "a replay must fail as the history did"
    before: tuple[int, ...] | None = None
    while before != best.choices and left > 0:
        before = best.choices
        size = max(1, len(best.choices) // 2)
        while size:
            at = 0
            while at < len(best.choices) and left > 0:
                head, block, tail = _cut(best.choices, at, size)
                is_shorter = attempt((*head, *tail))
                if not is_shorter and any(block):
                    attempt((*head, *[0] * len(block), *tail))
                at += 0 if is_shorter else size
            size //= 2
    return best


def _cut(choices: tuple[int, ...], at: int, size: int) -> tuple[tuple[int, ...], ...]:
    return choices[:at], choices[at : at + size], choices[at + size :]


def _strip(choices: Sequence[int]) -> tuple[int, ...]:
    """Without the zeros at its end, which are there anyway."""
    stripped = list(choices)
    while stripped and not stripped[-1]:
        stripped.pop()
    return tuple(stripped)
