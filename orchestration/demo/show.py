"""Prints for the demo: numbered steps, what happened in each, progress, and a table at the end.

On a terminal, progress is one line that changes. Elsewhere it is a line every 10 s at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.status import Status
from rich.table import Table
from rich.text import Text

_PLAIN_INTERVAL_S = 10.0
_PLAIN_WIDTH = 110


class Show:
    """The output of the demo."""

    def __init__(self, out: TextIO, *, steps: int) -> None:
        """Choose by `out` whether lines may change; nothing is printed yet."""
        width = None if out.isatty() else _PLAIN_WIDTH
        self._console = Console(file=out, highlight=False, soft_wrap=True, width=width)
        self._steps = steps
        self._step = 0
        self._began = time.monotonic()
        self._status: Status | None = None
        self._progressed_at = 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def headline(self, text: str) -> None:
        """Print a line in bold."""
        self._rest()
        self._print(Text(text, "bold"))

    def step(self, title: str) -> None:
        """Print the title of the next step."""
        self._rest()
        self._step += 1
        minutes, seconds = divmod(round(self.seconds), 60)
        number = f"[{self._step}/{self._steps}]"
        self._print(Text.assemble((number, "cyan"), f" {minutes}:{seconds:02d}  ", (title, "bold")))

    def say(self, text: str) -> None:
        """Print what happened in this step."""
        self._print(Text(f"            {text}"))

    def progress(self, text: str) -> None:
        """Print how far this step has come."""
        if self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status(Text(text))
                self._status.start()
            self._status.update(Text(text))
        elif time.monotonic() - self._progressed_at >= _PLAIN_INTERVAL_S:
            self._progressed_at = time.monotonic()
            self.say(text)

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Stop the changing progress line before a block in which nothing may be printed."""
        self._rest()
        yield

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table with the first column aligned left and the others right."""
        self._rest()
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="right" if index else "left", no_wrap=not index)
        for row in rows:
            table.add_row(*map(Text, row))
        self._console.print(table, soft_wrap=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._rest()

    def _rest(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
        self._progressed_at = time.monotonic()

    def _print(self, text: Text) -> None:
        self._console.print(text)
        self._console.file.flush()
