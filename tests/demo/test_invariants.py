"""Each invariant is broken by one wrong row, and by that alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from orchestration.demo.invariants import INVARIANTS, QUESTION, count_exceptions

TOTAL, PAID, LINES, STOCK, GOODS, SPENT, CUSTOMERS = INVARIANTS
SHOP = {
    "customers": "select 1L as id, 7.50bd as spent",
    "products": "select 'a' as sku",
    "stock": "select 'a' as sku, 6 as on_hand",
    "deliveries": "select explode(array(4, 5)) as quantity, 'a' as sku",
    "orders": (
        "select * from values (1L, 1L, 'paid', 7.50bd), (2L, 1L, 'placed', 2.50bd)"
        " as t(id, customer_id, status, total)"
    ),
    "order_lines": (
        "select * from values (1L, 'a', 2, 3.75bd), (2L, 'a', 1, 2.50bd)"
        " as t(order_id, sku, quantity, unit_price)"
    ),
    "payments": "select * from values (1L, 7.00bd), (1L, 0.50bd) as t(order_id, amount)",
}
DAMAGES = {
    "a total too high": ("orders", "case id when 2 then 2.51bd else total end as total", {TOTAL}),
    "a line missing": ("order_lines", "where order_id = 1", {TOTAL, STOCK}),
    "a paid order without payments": ("payments", "where false", {PAID, SPENT}),
    "an order lost": ("orders", "where id = 1", {LINES, TOTAL}),
    "a delivery lost": ("deliveries", "where quantity = 4", {STOCK}),
    "a product lost": ("products", "where false", {GOODS}),
    "stock counted twice": ("stock", "twice", {STOCK, GOODS}),
    "a customer lost": ("customers", "where false", {CUSTOMERS, SPENT}),
    "too much spent": ("customers", "spent + 1 as spent", {SPENT}),
    "a total unknown": ("orders", "if(id = 1, null, total) as total", {TOTAL, PAID}),
}


@pytest.fixture
def shop(spark: SparkSession) -> Iterator[SparkSession]:
    """Lend a session with a shop in order, a row or two a table."""
    session = spark.newSession()
    for name, rows in SHOP.items():
        session.sql(rows).createOrReplaceTempView(name)
    yield session
    for name in SHOP:
        session.catalog.dropTempView(name)


def _damage(session: SparkSession, table: str, how: str) -> None:
    rows = session.sql(SHOP[table])
    if how == "twice":
        damaged = rows.unionAll(rows)
    elif how.startswith("where"):
        damaged = rows.where(how.removeprefix("where "))
    else:
        changed = how.rpartition(" as ")[2]
        damaged = rows.selectExpr(*(how if c == changed else c for c in rows.columns))
    damaged.createOrReplaceTempView(table)


def test_a_shop_in_order_breaks_nothing(shop: SparkSession) -> None:
    assert count_exceptions(shop.sql(QUESTION)) == dict.fromkeys(INVARIANTS, 0)


@pytest.mark.parametrize("damage", DAMAGES)
def test_one_wrong_row_breaks_what_it_belongs_to(shop: SparkSession, damage: str) -> None:
    table, how, broken = DAMAGES[damage]
    _damage(shop, table, how)
    counted = count_exceptions(shop.sql(QUESTION))
    assert {name for name, count in counted.items() if count} == broken
