"""Finds the line of each key in a configuration, so that a mistake is reported with its line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

Key = tuple[str, ...]

_HEADER = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?\Z")
_PART = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_ENTRY = re.compile(r"\s*([A-Za-z0-9_.-]+|\"[^\"]+\"|'[^']+')\s*=")


@dataclass(frozen=True, slots=True, order=True)
class Mistake:
    """One mistake at one key, with its fix."""

    key: Key
    what: str
    fix: str


@dataclass(slots=True)
class Origins:
    """Where each key is set: a line of the file, or a variable of the environment."""

    file_name: str
    text: str
    _places: dict[Key, tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        """Find the line of each section and key."""
        self._places = {}
        section: Key = ()
        for number, line in enumerate(self.text.splitlines(), start=1):
            if header := _HEADER.match(line):
                section = _split_key(header[1])
                self._remember(section, number)
            elif entry := _ENTRY.match(line):
                self._remember(section + _split_key(entry[1]), number)

    def add_variable(self, key: Key, name: str) -> None:
        """Note that the environment overrides a key."""
        self._places[key] = (0, f"environment {name}")
        self._places.setdefault(key[:1], self._places[key])

    def report(self, mistakes: Iterable[Mistake]) -> list[str]:
        """Write one line for each mistake, in the order of the file: place, key, mistake, fix."""
        placed = {(self._place_of(mistake.key), mistake) for mistake in mistakes}
        return [
            f"{place}: {'.'.join(mistake.key)}: {mistake.what}; fix: {mistake.fix}"
            for (_, place), mistake in sorted(placed)
        ]

    def _place_of(self, key: Key) -> tuple[int, str]:
        above = (self._places.get(key[:depth]) for depth in range(len(key), 0, -1))
        return next(filter(None, above), (0, self.file_name))

    def _remember(self, key: Key, number: int) -> None:
        for depth in range(1, len(key) + 1):
            self._places.setdefault(key[:depth], (number, f"{self.file_name}:{number}"))


def _split_key(text: str) -> Key:
    """Split a TOML key into its parts; a quoted part stays whole."""
    return tuple(a or b or c for a, b, c in _PART.findall(text))
