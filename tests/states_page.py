"""The tables of docs/states.md; `python -m tests.states_page` writes them there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from cdc_core.table_states import (
    BACKFILL_MEANINGS,
    BACKFILL_MOVES,
    TABLE_MOVES,
    TABLE_ORIGINS,
    BackfillState,
    TableState,
)
from tests.walgate_command import REPOSITORY

PAGE = REPOSITORY / "docs" / "states.md"

Line = tuple[str, ...]


def replace_tables(page: str) -> str:
    """Give the page with the tables as the code has them."""
    for name, lines in (
        ("states of a table", describe_table_states()),
        ("moves of a table", describe_table_moves()),
        ("states of a backfill", describe_backfill_states()),
        ("moves of a backfill", describe_backfill_moves()),
    ):
        opening, closing = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, found, rest = page.partition(opening)
        _, ended, after = rest.partition(closing)
        assert found, f"the page has no {opening}"
        assert ended, f"the page has no {closing}"
        page = f"{before}{opening}\n{_format_table(lines)}\n{closing}{after}"
    return page


def describe_table_states() -> Iterator[Line]:
    yield "state", "meaning", "set by", "stored in"
    for state, origins in TABLE_ORIGINS.items():
        for origin in origins:
            yield f"`{state}`", origin.meaning, origin.set_by, origin.stored_in


def describe_table_moves() -> Iterator[Line]:
    yield "state", "ends by", "then"
    for state, moves in TABLE_MOVES.items():
        for event, followers in moves.items():
            *others, last = _sort(followers, TableState)
            yield f"`{state}`", event, f"{', '.join(others)} or {last}" if others else last


def describe_backfill_states() -> Iterator[Line]:
    yield "state", "meaning", "ended by"
    for state, meaning in BACKFILL_MEANINGS.items():
        followers = _sort(state.next_states, BackfillState)
        yield f"`{state}`", meaning, ", ".join(followers) or "Never."


def describe_backfill_moves() -> Iterator[Line]:
    yield "state", "recorded by", "in", "when", "may follow"
    for move in BACKFILL_MOVES:
        before = ", ".join(_sort(move.after, BackfillState)) or "No state: it is the first."
        yield f"`{move.to}`", move.by, move.place, move.when, before


def _sort(states: Collection[str], order: Iterable[TableState | BackfillState]) -> list[str]:
    return [f"`{state}`" for state in order if state in states]


def _format_table(lines: Iterable[Line]) -> str:
    head, *rest = lines
    rows = (head, ("---",) * len(head), *rest)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(replace_tables(PAGE.read_text()))
