"""The scheduler: it runs one actor at a time, chooses which one is next, and records each choice.

An actor is a greenlet. It hands over before each step that others can see, so that anything can
happen before the step. The choices come from a seed, from a list (a replay), or from a search over
all of them. The same choices give the same history, step by step.

The first option is always the plain one: the actor that ran last goes on. After the end of a list
of choices each further choice is 0. The deviations of a history are its choices that are not 0.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

# A history that takes more steps has actors that wait for each other, or poll without end.
MAX_STEPS = 1500


class Choices(Protocol):
    """Where choices come from, and where the history that they make is written."""

    steps: list[str]

    def take(self, count: int, *, is_plain: bool = True) -> int:
        """Choose one of `count` options (at least two); mostly the first one, if `is_plain`."""
        ...


@dataclass
class Given:
    """Choices from a list, then zeros; records each choice and its number of options."""

    wanted: Sequence[int]
    taken: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def take(self, count: int, *, is_plain: bool = True) -> int:
        """The next of the list; the last option where there are fewer now."""
        del is_plain
        at = len(self.taken)
        chosen = min(self.wanted[at], count - 1) if at < len(self.wanted) else 0
        self.taken.append(chosen)
        self.counts.append(count)
        return chosen


@dataclass
class Seeded:
    """Choices by a seed, which also decides how often a history deviates."""

    seed: int
    taken: list[int] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Draw how calm the history is."""
        self._random = random.Random(self.seed)
        self._calm = self._random.choice((0.3, 0.5, 0.7, 0.8, 0.9, 0.95))

    def take(self, count: int, *, is_plain: bool = True) -> int:
        """The first option as often as the seed is calm, else any."""
        draw = self._random
        is_calm = is_plain and draw.random() < self._calm
        chosen = 0 if is_calm else draw.randrange(count)
        self.taken.append(chosen)
        return chosen


class Killed(BaseException):
    """The process of an actor has died: nothing of it runs any more, cleaning up included."""


class TooLong(Exception):
    """A history has taken more steps than it may."""


@dataclass(slots=True, eq=False)
class Actor:
    """One thread of a simulated process; it goes on once `is_ready`, or at the time `until`."""

    name: str
    process: str
    run: greenlet
    label: str = "begins"
    is_ready: Callable[[], bool] | None = None
    until: float | None = None
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Something that the world does to the actors, such as a death or a jump of the clock."""

    label: str
    can_be: Callable[[], bool]
    make: Callable[[], None]


class Scheduler:
    """Runs actors one at a time until none can go on; `steps` is the history to read."""

    def __init__(self, choices: Choices) -> None:
        """No actor is there yet."""
        self._choices = choices
        self._actors: list[Actor] = []
        self._last: Actor | None = None
        self._hub = getcurrent()
        self.moves: list[Move] = []
        self.steps = choices.steps
        self.clock = 1000.0
        self._count = 0

    def spawn(self, name: str, run: Callable[[], Any], *, process: str = "") -> Actor:
        """Add an actor, which begins when it is chosen."""
        actor = Actor(name, process or name, greenlet(run, self._hub))
        own = [n for n, other in enumerate(self._actors) if other.process == actor.process]
        # Next to its own process: the first ready actor is the plain choice.
        self._actors.insert(own[-1] + 1 if own else len(self._actors), actor)
        return actor

    def is_alive(self, process: str) -> bool:
        """Whether a process has an actor that has not ended."""
        return any(actor.process == process for actor in self._actors)

    def kill(self, process: str) -> None:
        """End a process wherever it is."""
        for actor in [actor for actor in self._actors if actor.process == process]:
            actor.is_dead = True
            self._actors.remove(actor)
            before, self._last = self._last, actor
            with suppress(Killed):
                if actor.run:
                    actor.run.throw(Killed)
            self._last = before

    def require_alive(self) -> None:
        """Raise Killed if the actor is dead. An actor calls this before it changes the world."""
        if self._last is not None and self._last.is_dead:
            raise Killed

    def pause(self, label: str) -> None:
        """Let others go first; `label` is what the actor does next."""
        self._hand_over(label, None, None)

    def wait(
        self, label: str, is_ready: Callable[[], bool], *, seconds: float | None = None
    ) -> None:
        """Wait for something, or for so many seconds."""
        until = None if seconds is None else self.clock + seconds
        self._hand_over(label, is_ready, until)

    def choose(self, labels: Sequence[str]) -> int:
        """Choose what the world does, one of some labels; the first one is the usual case."""
        chosen = self._choices.take(len(labels))
        if chosen:
            self.steps.append(f"{self._name()}: {labels[chosen]}")
        return chosen

    def draw(self, count: int) -> int:
        """Any number below `count`: how a world is made, before anything happens in it."""
        return self._choices.take(count, is_plain=False) if count > 1 else 0

    def note(self, text: str) -> None:
        """Add the result of a step to the history."""
        self.steps.append(f"    {text}")

    def run(self) -> None:
        """Run until no actor can go on. Raises: what an actor raised; TooLong."""
        try:
            while (actor := self._choose_next()) is not None:
                self._last = actor
                actor.run.switch()
                if actor.run.dead and actor in self._actors:
                    self._actors.remove(actor)
        finally:
            for process in {actor.process for actor in self._actors}:
                self.kill(process)

    def _name(self) -> str:
        return "world" if self._last is None else self._last.name

    def _hand_over(
        self, label: str, is_ready: Callable[[], bool] | None, until: float | None
    ) -> None:
        actor = self._last
        assert actor is not None
        if actor.is_dead:
            raise Killed
        actor.label, actor.is_ready, actor.until = label, is_ready, until
        self._hub.switch()
        if actor.is_dead:
            raise Killed

    def _choose_next(self) -> Actor | None:
        while True:
            ready = [a for a in self._actors if a.is_ready is None or self._is_ready(a)]
            if not ready:
                timers = [a.until for a in self._actors if a.until is not None]
                if not timers:
                    return None
                self.clock = max(self.clock, min(timers))
                continue
            self._count += 1
            if self._count > MAX_STEPS:
                raise TooLong
            if self._last in ready:
                ready.remove(self._last)
                ready.insert(0, self._last)
            moves = [move for move in self.moves if move.can_be()]
            options = len(ready) + len(moves)
            chosen = self._choices.take(options) if options > 1 else 0
            if chosen < len(ready):
                actor = ready[chosen]
                self.steps.append(f"{actor.name}: {actor.label}")
                return actor
            move = moves[chosen - len(ready)]
            self.steps.append(f"world: {move.label}")
            move.make()

    def _is_ready(self, actor: Actor) -> bool:
        assert actor.is_ready is not None
        return actor.is_ready() or (actor.until is not None and self.clock >= actor.until)


def list_steps(steps: Iterable[str]) -> str:
    """A history for a person, one numbered step a line."""
    return "\n".join(f"{number:4} {step}" for number, step in enumerate(steps, 1))
