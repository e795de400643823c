"""The shop's writers: what customers and staff do, several at a time, at a steady rate.

Every transaction keeps the shop's invariants true. A writer locks rows in one order: orders,
products (through references), stock, lines. A writer that still meets a deadlock rolls back.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal

import psycopg
from psycopg.types.json import Jsonb

from cdc_core.errors import Retry, WalgateError
from cdc_core.source.connection import first_line
from orchestration.demo.shop import CUSTOMERS, NAMES_LOCK

# Values that break a careless conversion to the text of COPY, CSV, JSON or logs.
_NOTES = (
    None,
    "",
    "ring twice",
    "tab\tand\nline\r\nend",
    "back\\slash \\N and \\.",
    'it\'s "quoted", 50% off',
    "Grüße 🎁 日本",
    "  blanks  ",
)
_METHODS = ("card", "transfer", "voucher")
_PRICE_FACTORS = (Decimal("0.9"), Decimal("1.1"))
_DROPPED_LINES = 0.1
_PAID_IN_TWO = 0.3

_Work = Callable[[psycopg.Connection, random.Random], bool]


class Undone(Exception):
    """The transaction, or the savepoint, rolls back what it has written."""


# If another writer renames a product between two statements, a reference to its old key fails.
_UNDOING_LINE = (Undone, psycopg.errors.CheckViolation)
_UNDOING = (Undone, psycopg.errors.DeadlockDetected, psycopg.errors.ForeignKeyViolation)


class Writers:
    """Several writers and what they did; each has a connection and a thread."""

    def __init__(self, dsn: str, *, writers: int, per_second: float, seed: int) -> None:
        """All writers together try `per_second` transactions a second; none works yet."""
        self._dsn = dsn
        self._pause_s = writers / per_second
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._counting = threading.Lock()
        self._done: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(f"{seed} {i}"),), daemon=True)
            for i in range(writers)
        ]

    def start(self) -> None:
        """Start every writer."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop every writer after its transaction."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def require_health(self) -> None:
        """Raise the error of a writer, if one failed. Raises: WalgateError for a psycopg error."""
        failure = self._failure
        if isinstance(failure, psycopg.Error):
            raise WalgateError(
                f"a writer of the shop failed: {first_line(failure)}",
                fix="run the demo again; see postgres.log in its folder",
                retry=Retry.LATER,
            ) from failure
        if failure is not None:
            raise failure

    def count(self) -> Counter[str]:
        """The number of transactions so far, by kind; undone ones count as `rolled back`."""
        with self._counting:
            return Counter(self._done)

    def _work(self, chance: random.Random) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                due = time.monotonic() + chance.uniform(0, self._pause_s)
                while not self._stop.wait(max(0.0, due - time.monotonic())):
                    # After a pause of the server, the writer goes on at its rate, not faster.
                    due = max(due + self._pause_s, time.monotonic() - self._pause_s)
                    self._do_one(connection, chance)
        except BaseException as error:  # noqa: BLE001 - the demo raises it.
            self._failure = error

    def _do_one(self, connection: psycopg.Connection, chance: random.Random) -> None:
        (kind,) = chance.choices(list(_KINDS), [weight for _, weight in _KINDS.values()])
        try:
            with connection.transaction():
                is_done = _KINDS[kind][0](connection, chance)
        except _UNDOING:
            kind, is_done = "rolled back", True
        if is_done:
            with self._counting:
                self._done[kind] += 1


def place_order(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Sell one to four products; a line that is dropped, or lacks stock, rolls back alone."""
    (row,) = connection.execute(
        "insert into orders (customer_id, status, total, note, placed_at)"
        " values (%s, 'placed', 0, %s, clock_timestamp()) returning id",
        [chance.randint(1, CUSTOMERS), chance.choice(_NOTES)],
    )
    skus = sorted(_choose_products(connection, chance.randint(1, 4)))
    sold = 0
    for line, sku in enumerate(skus, 1):
        with suppress(*_UNDOING_LINE), connection.transaction():
            _add_line(connection, chance, row[0], line, sku)
            sold += 1
    _sum_up(connection, row[0])
    if not sold:
        raise Undone
    return True


def pay_order(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Pay the oldest order that is not paid, in one payment or two."""
    order = _lock_order(connection, "placed")
    if order is None:
        return False
    number, customer, total = order
    first = round(total / 3, 2) if chance.random() < _PAID_IN_TWO else total
    for amount in filter(None, (first, total - first)):
        connection.execute(
            "insert into payments (order_id, amount, method, paid_at)"
            " values (%s, %s, %s, clock_timestamp())",
            [number, amount, chance.choice(_METHODS)],
        )
    connection.execute("update orders set status = 'paid' where id = %s", [number])
    connection.execute("update customers set spent = spent + %s where id = %s", [total, customer])
    return True


def ship_order(connection: psycopg.Connection, _: random.Random) -> bool:
    """Ship the oldest paid order."""
    order = _lock_order(connection, "paid")
    if order is None:
        return False
    connection.execute(
        "update orders set status = 'shipped', shipped_at = clock_timestamp() where id = %s",
        [order[0]],
    )
    return True


def cancel_order(connection: psycopg.Connection, _: random.Random) -> bool:
    """Cancel the oldest order that is not paid."""
    order = _lock_order(connection, "placed")
    if order is None:
        return False
    connection.execute("update orders set status = 'cancelled' where id = %s", [order[0]])
    return True


def delete_order(connection: psycopg.Connection, _: random.Random) -> bool:
    """Delete a cancelled order with its lines, and put the goods back into stock."""
    order = _lock_order(connection, "cancelled")
    if order is None:
        return False
    for sku, quantity in connection.execute(
        "select sku, sum(quantity) from order_lines where order_id = %s group by sku order by sku",
        [order[0]],
    ).fetchall():
        _put_into_stock(connection, sku, quantity)
    connection.execute("delete from order_lines where order_id = %s", [order[0]])
    connection.execute("delete from orders where id = %s", [order[0]])
    return True


def join_orders(connection: psycopg.Connection, _: random.Random) -> bool:
    """Move the lines of one order to another, which changes their keys; delete the empty order."""
    orders = connection.execute(
        "select id from orders where status = 'placed' order by id limit 2 for update skip locked"
    ).fetchall()
    if len(orders) == 1 or not orders:
        return False
    (kept,), (emptied,) = orders
    connection.execute(
        "update order_lines set order_id = %s, line = line + 10"
        " + (select max(line) from order_lines where order_id = %s) where order_id = %s",
        [kept, kept, emptied],
    )
    connection.execute("delete from orders where id = %s", [emptied])
    _sum_up(connection, kept)
    return True


def change_prices(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Change some prices. The manuals, stored out of line, stay the same and are not sent."""
    for sku in sorted(_choose_products(connection, 3)):
        connection.execute(
            "update products set price = round(price * %s, 2) + 0.01,"
            " attributes = attributes || %s, changed_at = clock_timestamp() where sku = %s",
            [
                chance.choice(_PRICE_FACTORS),
                Jsonb({"sale": chance.choice((True, False, None))}),
                sku,
            ],
        )
    return True


def rewrite_manual(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Write a new manual of about 10 kB."""
    (sku,) = _choose_products(connection, 1)
    connection.execute(
        "update products set manual = %s, changed_at = clock_timestamp() where sku = %s",
        [chance.randbytes(5000).hex(), sku],
    )
    return True


def take_delivery(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Bring goods into stock."""
    for sku in sorted(_choose_products(connection, 5)):
        quantity = chance.randint(2, 15)
        connection.execute(
            "insert into deliveries (sku, quantity, delivered_at)"
            " select sku, %s, clock_timestamp() from products where sku = %s",
            [quantity, sku],
        )
        _put_into_stock(connection, sku, quantity)
    return True


def rename_product(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Give a product another key; PostgreSQL updates stock, deliveries and lines with it."""
    connection.execute(NAMES_LOCK)
    (sku,) = _choose_products(connection, 1)
    connection.execute(
        "update products set sku = %s where sku = %s", [f"R-{chance.getrandbits(40):010x}", sku]
    )
    return True


def change_mind(connection: psycopg.Connection, chance: random.Random) -> bool:
    """Place an order, then roll all of it back."""
    place_order(connection, chance)
    raise Undone


_KINDS: dict[str, tuple[_Work, float]] = {
    "ordered": (place_order, 40),
    "paid": (pay_order, 25),
    "shipped": (ship_order, 14),
    "prices changed": (change_prices, 6),
    "delivered": (take_delivery, 5),
    "changed mind": (change_mind, 4),
    "cancelled": (cancel_order, 4),
    "deleted": (delete_order, 4),
    "joined": (join_orders, 3),
    "manual rewritten": (rewrite_manual, 2),
    "renamed": (rename_product, 0.5),
}


def _choose_products(connection: psycopg.Connection, count: int) -> Sequence[str]:
    chosen = connection.execute("select sku from stock order by random() limit %s", [count])
    return [sku for (sku,) in chosen]


def _add_line(
    connection: psycopg.Connection, chance: random.Random, order: int, line: int, sku: str
) -> None:
    """Sell some of a product. Raises: CheckViolation if stock has too few; Undone."""
    quantity = chance.randint(1, 3)
    connection.execute(
        "insert into order_lines (order_id, line, sku, quantity, unit_price)"
        " select %s, %s, sku, %s, price from products where sku = %s",
        [order, line, quantity, sku],
    )
    _put_into_stock(connection, sku, -quantity)
    if chance.random() < _DROPPED_LINES:
        raise Undone


def _put_into_stock(connection: psycopg.Connection, sku: str, quantity: int) -> None:
    """Change what is on hand. Raises: Undone if another writer has just renamed the product."""
    changed = connection.execute(
        "update stock set on_hand = on_hand + %s where sku = %s", [quantity, sku]
    )
    if not changed.rowcount:
        raise Undone


def _sum_up(connection: psycopg.Connection, order: int) -> None:
    connection.execute(
        "update orders set total = (select coalesce(sum(quantity * unit_price), 0)"
        " from order_lines where order_id = %s) where id = %s",
        [order, order],
    )


def _lock_order(connection: psycopg.Connection, status: str) -> tuple[int, int, Decimal] | None:
    """Lock the oldest order of a status that no other writer has locked; None if there is none."""
    found = connection.execute(
        "select id, customer_id, total from orders where status = %s"
        " order by id limit 1 for update skip locked",
        [status],
    ).fetchone()
    return None if found is None else (found[0], found[1], found[2])
