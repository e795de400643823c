"""The worlds that histories are played in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from tests.simulation.backfill_part import WORKER, restart_worker, start_worker
from tests.simulation.capture_part import restart_capture, start_capture
from tests.simulation.clients import Statement, start_client
from tests.simulation.merge_part import (
    MERGER,
    Run,
    maintain,
    read_table,
    restart_merger,
    start_merger,
)
from tests.simulation.model import judge_cuts, judge_log
from tests.simulation.scheduler import Choices
from tests.simulation.server import Row
from tests.simulation.world import World

Draw: TypeAlias = Callable[[int], int]


def play_small(choices: Choices) -> None:
    """Two rows, two transactions, one chunk, one crash of capture, a minute that passes."""
    world = World(choices)
    filled: list[Row] = [("1", "old", "big"), ("2", "old", "big")]
    world.server.fill("t", filled)
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_worker(world, "t", chunk_rows=10)
    start_capture(world)
    start_client(world, "one", [[Statement("update", key="1", value="new")]])
    start_client(world, "two", [[Statement("delete", key="2")]])
    world.allow("capture dies", lambda: restart_capture(world), times=1, process=WORKER)
    world.allow("a minute passes", lambda: _pass(world, 61), times=1, process=WORKER)
    world.scheduler.run()
    judge_log(world, "t", filled)


def play_altered(choices: Choices) -> None:
    """Two rows, two chunks, and an ALTER that changes the values of all rows; nothing dies."""
    world = World(choices)
    filled: list[Row] = [("1", "old", "big"), ("2", "old", "big")]
    world.server.fill("t", filled)
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_worker(world, "t", chunk_rows=1)
    start_capture(world)
    start_client(world, "one", [[Statement("alter")]])
    world.scheduler.run()
    judge_log(world, "t", filled)


def play_altered_late(choices: Choices) -> None:
    """An ALTER by a transaction that has the smallest xid, and commits after another one."""
    world = World(choices)
    filled: list[Row] = [("1", "old", "big"), ("2", "old", "big")]
    world.server.fill("t", filled)
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_client(world, "one", [[Statement("update", key="1", value="new"), Statement("alter")]])
    start_client(
        world, "two", [[Statement("update", key="2", value=value)] for value in ("new", "newer")]
    )
    start_capture(world)
    world.scheduler.run()
    judge_log(world, "t", filled)


def play_recovered(choices: Choices) -> None:
    """A table is read again in a new epoch; all values of its rows changed between the epochs."""
    world = World(choices)
    older: list[Row] = [(str(key), "older", "older big") for key in range(1, 4)]
    filled: list[Row] = [(str(key), "old", "big") for key in range(1, 3)]
    world.server.fill("t", filled)
    for _ in range(2):
        world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_worker(world, "t", chunk_rows=1 + world.scheduler.draw(2))
    start_capture(world)
    statements = [_draw_statement(world.scheduler.draw, 0, "t", _MILD) for _ in range(2)]
    start_client(world, "one", [[statements[0]], [statements[1]]])
    world.allow("capture dies", lambda: restart_capture(world), times=1, process=WORKER)
    world.scheduler.run()
    judge_log(world, "t", filled, older=older)


def play_backfill(choices: Choices) -> None:
    """A backfill of a few rows in chunks, while clients run any statement; with every accident."""
    world = World(choices)
    draw = world.scheduler.draw
    filled: list[Row] = [(str(key), "old", "big") for key in range(1, 2 + draw(4))]
    world.server.fill("t", filled)
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    chunk_rows, parallel = (2, 1, 10)[draw(3)], 1 + draw(2)
    start_worker(world, "t", chunk_rows=chunk_rows, parallel=parallel)
    start_capture(world)
    for name in ("one", "two", "three")[: 1 + draw(3)]:
        start_client(world, name, [_draw_transaction(draw) for _ in range(1 + draw(2))])
    _allow_accidents(world, chunk_rows=chunk_rows, parallel=parallel)
    world.scheduler.run()
    judge_log(world, "t", filled)


def play_small_merges(choices: Choices) -> None:
    """Two tables, two transactions of both, a run of long rounds and one of short; one death."""
    world = World(choices, ("a", "b"))
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_capture(world)
    both = [
        [Statement("upsert", table, "1", value) for table in ("a", "b")] for value in ("x", "y")
    ]
    start_client(world, "one", both)
    runs = [Run(), Run(round_rows=1)]
    start_merger(world, runs)
    world.allow("the merger dies", lambda: restart_merger(world, runs), times=1, process=MERGER)
    world.allow("the lake is maintained", lambda: maintain(world), times=1, process=MERGER)
    world.scheduler.run()
    for table in ("a", "b"):
        judge_cuts(world, table, read_table)


def play_merges(choices: Choices) -> None:
    """Two tables from their first row on, merged by runs that differ, fail and die."""
    world = World(choices, ("a", "b"))
    draw = world.scheduler.draw
    world.log.begin_epoch(first_lsn=world.server.lsn, system="1", timeline=1)
    start_capture(world)
    for name in ("one", "two")[: 1 + draw(2)]:
        count = 1 + draw(3)
        start_client(
            world, name, [_draw_transaction(draw, tables=("a", "b")) for _ in range(count)]
        )
    runs = [_draw_run(draw) for _ in range(1 + draw(3))]
    start_merger(world, runs)
    world.allow("the merger dies", lambda: restart_merger(world, runs), times=2, process=MERGER)
    world.allow("capture dies", lambda: restart_capture(world), times=1, process="one")
    world.allow("the lake is maintained", lambda: maintain(world), times=2, process=MERGER)
    world.scheduler.run()
    judge_log(world, "a", [])
    for table in ("a", "b"):
        judge_cuts(world, table, read_table)


def _draw_run(draw: Draw) -> Run:
    tables = (None, ["public.a"], ["public.b"])[draw(3)]
    return Run((1000, 1, 2)[draw(3)], tables, (None, None, "public.a", "public.b")[draw(4)])


# Out of a hundred statements.
_SHARES = {
    "update": 30,
    "upsert": 25,
    "delete": 20,
    "widen": 10,
    "move": 11,
    "truncate": 2,
    "alter": 2,
}
_KINDS = tuple(kind for kind, share in _SHARES.items() for _ in range(share))
_MILD = ("update", "move", "delete", "upsert")


def _draw_transaction(draw: Draw, *, tables: tuple[str, ...] = ("t",)) -> list[Statement]:
    return [_draw_statement(draw, n, tables[draw(len(tables))]) for n in range(1 + draw(2))]


def _draw_statement(
    draw: Draw, number: int, table: str, kinds: Sequence[str] = _KINDS
) -> Statement:
    kind, key = kinds[draw(len(kinds))], str(1 + draw(5))
    value = str(1 + draw(5)) if kind == "move" else f"new {number}"
    return Statement(kind, table, key, value)


def _allow_accidents(world: World, *, chunk_rows: int, parallel: int) -> None:
    def restart() -> None:
        restart_worker(world, "t", chunk_rows=chunk_rows, parallel=parallel)

    world.allow("capture dies", lambda: restart_capture(world), times=2, process=WORKER)
    world.allow("the worker dies", restart, times=1, process=WORKER)
    world.allow("a minute passes", lambda: _pass(world, 61), times=2, process=WORKER)
    world.allow("the source's clock jumps", lambda: _jump(world), times=1, process=WORKER)


def _pass(world: World, seconds: float) -> None:
    world.scheduler.clock += seconds


def _jump(world: World) -> None:
    """Eleven minutes: capture forgets a memory after ten minutes without a sign of life."""
    world.server.clock_us += 11 * 60 * 1_000_000
