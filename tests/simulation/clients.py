"""Clients of the source: their transactions write, commit, and are visible some time later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.server import Change, Row, Server, Transaction
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its kind, its table, the key of its row, and its new value.

    `update` changes `v`, so the unchanged `big` is not sent. `widen` changes `big`. `move` gives
    the row another key. `upsert` and `delete` do what they say. `truncate` and `alter` change the
    whole table.
    """

    kind: str
    table: str = "t"
    key: str = ""
    value: str = ""


def start_client(world: World, name: str, transactions: Sequence[Sequence[Statement]]) -> None:
    """Have a client run its transactions, one after the other."""

    def work() -> None:
        for number, statements in enumerate(transactions):
            _run(world, f"{name}.{number}", statements)

    world.scheduler.spawn(name, work)


def _run(world: World, session: str, statements: Sequence[Statement]) -> None:
    scheduler, server = world.scheduler, world.server
    transaction = server.begin(session)
    for statement in statements:
        what = " ".join(filter(None, (statement.kind, statement.key, statement.value)))
        if statement.kind in {"truncate", "alter"}:
            _lock_table(world, transaction, statement, what, "exclusive")
            server.write(transaction, Change(statement.kind, statement.table))
            continue
        _lock_table(world, transaction, statement, what, "weak")
        _lock_rows(world, transaction, statement, what)
        if (change := _make_change(server, statement)) is not None:
            server.write(transaction, change)
    if transaction.xid is None:
        server.end(transaction)
        return
    scheduler.pause("writes its commit record")
    server.record_commit(transaction)
    scheduler.pause("is seen")
    server.end(transaction)
    world.touch()


def _lock_table(
    world: World, transaction: Transaction, statement: Statement, what: str, mode: str
) -> None:
    server, table = world.server, statement.table
    world.scheduler.wait(what, lambda: server.is_table_free(table, transaction, mode))
    server.lock_table(table, transaction, mode)


def _lock_rows(world: World, transaction: Transaction, statement: Statement, what: str) -> None:
    server, table = world.server, statement.table
    keys = [statement.key, *([statement.value] if statement.kind == "move" else [])]
    for key in keys:
        if not server.is_row_free(table, key, transaction):
            free = lambda key=key: server.is_row_free(table, key, transaction)  # noqa: E731
            world.scheduler.wait(what, free)
        server.lock_row(table, key, transaction)


def _make_change(server: Server, statement: Statement) -> Change | None:
    """The change that a statement makes to the rows of now; None if it changes none."""
    table, key, value = statement.table, statement.key, statement.value
    old = server.read_newest(table, key)
    if statement.kind == "upsert" and old is None:
        return Change("insert", table, new=(key, value, f"big {value}"))
    if old is None:
        return None
    if statement.kind == "delete":
        return Change("delete", table, old=old)
    if statement.kind == "widen":
        return Change("update", table, new=(key, old[1], f"big {value}"), old=old)
    new: Row = (key, value, old[2])
    if statement.kind == "move":
        new = (value, *old[1:])
    is_taken = new[0] != key and server.read_newest(table, value) is not None
    return None if is_taken else Change("update", table, new=new, old=old, unsent=frozenset({2}))
