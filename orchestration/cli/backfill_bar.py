"""Shows how far backfills have come: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import typer

if TYPE_CHECKING:
    from rich.progress import TaskID

    from cdc_core.backfill.results import BackfillProgress
    from cdc_core.vocabulary import TableName

Tell: TypeAlias = "Callable[[TableName, BackfillProgress], None]"

_SAY_AGAIN_S = 5.0


@contextmanager
def showing_progress() -> Iterator[Tell]:
    """Show progress on standard error while the block runs; yield the function that takes it."""
    if not sys.stderr.isatty():
        yield _Lines().tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[told]}", markup=False),
        TimeRemainingColumn(),
    )
    terminal = sys.stderr
    with Progress(*columns, console=Console(stderr=True)) as bars, _logging_above(terminal):
        yield _Bars(bars).tell


class _Bars:
    """A bar for each table: rows of the estimate, rows per second, chunks, stale rows dropped."""

    def __init__(self, bars: object) -> None:
        from rich.progress import Progress

        assert isinstance(bars, Progress)
        self._bars = bars
        self._tasks: dict[TableName, TaskID] = {}

    def tell(self, table: TableName, progress: BackfillProgress) -> None:
        """Update the bar of a table."""
        from cdc_core.table_states import BackfillState

        if table not in self._tasks:
            self._tasks[table] = self._bars.add_task(str(table), total=None, told="")
        is_done = progress.state is BackfillState.DONE
        # The total is an estimate until the backfill is done.
        total = progress.rows if is_done else max(progress.rows_estimated or 0, progress.rows)
        task = self._tasks[table]
        self._bars.update(task, completed=progress.rows, total=total or 1)
        speed = next((one.speed for one in self._bars.tasks if one.id == task), None)
        told = [
            f"{progress.rows:,} of {'' if is_done else 'about '}{total:,} rows",
            *([f"{speed:,.0f} rows/s"] if speed else []),
            f"{progress.chunks} chunks",
            f"{progress.stale} stale",
        ]
        if progress.state in {BackfillState.HELD, BackfillState.PAUSED, BackfillState.CANCELLED}:
            told.append(str(progress.state) + (f": {progress.reason}" if progress.reason else ""))
        self._bars.update(task, told=", ".join(told))
        if is_done and not progress.rows:
            self._bars.update(task, completed=1, total=1)


class _Lines:
    """Prints a line for each change of a table's state, and one every few seconds."""

    def __init__(self) -> None:
        self._said_at: dict[TableName, float] = {}
        self._states: dict[TableName, str] = {}

    def tell(self, table: TableName, progress: BackfillProgress) -> None:
        """Print how far a table has come, if a line is due."""
        now = time.monotonic()
        is_new = self._states.get(table, progress.state) != progress.state
        self._states[table] = progress.state
        if is_new or now - self._said_at.get(table, 0.0) >= _SAY_AGAIN_S:
            self._said_at[table] = now
            state = f" {progress.state}," if is_new else ""
            typer.echo(
                f"{table}:{state} {progress.rows:,} rows in {progress.chunks} chunks", err=True
            )


@contextmanager
def _logging_above(terminal: object) -> Iterator[None]:
    """Send log lines to the stream that rich puts in place of standard error, above the bars."""
    handlers = [
        handler
        for handler in (*logging.getLogger().handlers, *logging.getLogger("walgate").handlers)
        if isinstance(handler, logging.StreamHandler) and handler.stream is terminal
    ]
    former = [(handler, handler.setStream(sys.stderr)) for handler in handlers]
    try:
        yield
    finally:
        for handler, stream in former:
            if stream is not None:
                handler.setStream(stream)
