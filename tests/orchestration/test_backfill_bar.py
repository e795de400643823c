"""Progress of backfills: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import io
import logging

import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.cli.backfill_bar import showing_progress

T = TableName("public", "orders[bold]")
BEGUN = BackfillProgress("a" * 32, rows_estimated=1000, chunks=2, rows=400, stale=3)
HELD = BackfillProgress(
    "a" * 32, BackfillState.HELD, 1000, chunks=3, rows=600, stale=3, reason="the slot is full"
)
DONE = BackfillProgress("a" * 32, BackfillState.DONE, 1000, chunks=5, rows=990, stale=3)


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def show(stderr: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("sys.stderr", stderr)
    logger = logging.getLogger("walgate")
    handler = logging.StreamHandler(stderr)
    monkeypatch.setattr(logger, "handlers", [handler])
    with showing_progress() as tell:
        for progress in (BEGUN, HELD):
            tell(T, progress)
        logger.warning("said meanwhile")
        tell(T, DONE)
    assert handler.stream is stderr
    return stderr.getvalue()


def test_a_terminal_shows_rows_chunks_stale_rows_and_why_nothing_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = show(Terminal(), monkeypatch)
    assert "public.orders[bold]" in shown.replace('"', "")
    last = shown.rsplit("\r", 1)[-1]
    assert "990 of 990 rows" in last
    assert "5 chunks, 3 stale" in last
    assert "━" in last
    assert "said meanwhile\n" in shown


def test_elsewhere_lines_tell_of_each_change_of_state(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = show(io.StringIO(), monkeypatch).splitlines()
    assert lines == [
        f"{T}: 400 rows in 2 chunks",
        f"{T}: held, 600 rows in 3 chunks",
        "said meanwhile",
        f"{T}: done, 990 rows in 5 chunks",
    ]
