"""The shop's rules hold in the source itself, whatever its writers do at the same time."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from typing_extensions import override

from cdc_core.errors import WalgateError
from orchestration.demo.shop import PRODUCTS, fill_shelves, import_archive, make_tables
from orchestration.demo.writers import Undone, Writers, delete_order, place_order
from tests.deadline import wait_for
from tests.postgres_server import Database

DEADLINE_S = 120.0
KINDS = {
    "ordered",
    "paid",
    "shipped",
    "prices changed",
    "delivered",
    "cancelled",
    "deleted",
    "joined",
    "manual rewritten",
    "renamed",
    "rolled back",
}
# Written for PostgreSQL and apart from the demo's own: each gives the rows that break a rule.
RULES = {
    "totals": """
        select id from orders o where total <>
        (select sum(quantity * unit_price) from order_lines where order_id = o.id)
    """,
    "stock": """
        select sku from stock s where
        on_hand + coalesce((select sum(quantity) from order_lines l where l.sku = s.sku), 0)
        <> (select sum(quantity) from deliveries d where d.sku = s.sku)
    """,
    "payments": """
        select id from orders o where
        coalesce((select sum(amount) from payments where order_id = o.id), 0)
        <> case when status in ('paid', 'shipped') then total else 0 end
    """,
    "customers": """
        select id from customers c where spent <>
        (select coalesce(sum(amount), 0) from payments p join orders o on o.id = p.order_id
         where o.customer_id = c.id)
    """,
}


@pytest.fixture
def shop(database18: Database) -> Database:
    """Lend a shop that is about to open."""
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        make_tables(connection)
        fill_shelves(connection)
    return database18


def test_every_kind_of_transaction_leaves_every_rule_true(shop: Database, seed: int) -> None:
    writers = Writers(shop.dsn, writers=4, per_second=400, seed=seed)
    writers.start()
    try:
        with psycopg.connect(shop.dsn, autocommit=True) as connection:
            written = import_archive(connection, rows=6_000)
        wait_for(lambda: writers.count().keys() >= KINDS, DEADLINE_S, "every kind of work")
    finally:
        writers.stop()
    writers.require_health()
    assert 6_000 <= written <= 6_000 + 2 * PRODUCTS + 1_000
    assert shop.query("select count(*) >= 1000 from orders") == [(True,)]
    broken = {name: shop.query(rule) for name, rule in RULES.items()}
    assert broken == {name: [] for name in RULES}


class RenamingConnection(psycopg.Connection[tuple[Any, ...]]):
    """Lets another writer rename every product just before the stock of one changes."""

    other: Database

    @override
    def execute(self, query: Any, *args: Any, **kwargs: Any) -> psycopg.Cursor[tuple[Any, ...]]:
        if "update stock" in query:
            self.other.execute("update products set sku = 'R-' || sku")
        return super().execute(query, *args, **kwargs)


def test_an_order_whose_products_are_renamed_is_not_deleted_without_its_goods(
    shop: Database,
) -> None:
    with psycopg.connect(shop.dsn, autocommit=True) as connection:
        assert place_order(connection, random.Random(1))
    shop.execute("update orders set status = 'cancelled'")
    with RenamingConnection.connect(shop.dsn, autocommit=True) as connection:
        connection.other = shop
        with pytest.raises(Undone), connection.transaction():
            delete_order(connection, random.Random(1))
    assert shop.query("select bool_and(sku like 'R-%') from products") == [(True,)]
    assert shop.query(RULES["stock"]) == []


def test_manuals_lie_out_of_line_and_prices_do_not_touch_them(shop: Database) -> None:
    plain = "select min(pg_column_size(manual)) > 8000, min(length(manual)) from products"
    ((is_large, length),) = shop.query(plain)
    assert is_large
    assert length > 8_000
    toasted = "select pg_relation_size(reltoastrelid) from pg_class where relname = 'products'"
    before = shop.query(toasted)
    shop.execute("update products set price = price + 1")
    assert shop.query(toasted) == before


def test_a_failed_writer_is_told_without_its_rows(shop: Database) -> None:
    writers = Writers(shop.dsn, writers=1, per_second=100, seed=1)
    shop.execute("alter table orders add check (note <> 'ring twice' and total < 0) not valid")
    writers.start()

    with pytest.raises(WalgateError, match="CheckViolation") as raised:
        wait_for(writers.require_health, DEADLINE_S, "the writer to fail")
    assert "Failing row" not in str(raised.value)
    writers.stop()
