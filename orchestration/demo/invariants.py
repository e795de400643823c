"""Checks in the lake, at one LSN, what is true of the shop after every transaction.

Each invariant spans tables. Half a transaction, or two tables read at different moments, would
break it. A query unites the rows of several tables by a shared key and sums them up once.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake, open_table
from spark_jobs.query.sql import answer_query


@dataclass(frozen=True, slots=True)
class Breach:
    """An invariant that does not hold at a bound, and how many rows break it."""

    invariant: str
    at: Bound
    rows: int

    def __str__(self) -> str:
        """The breach in one line."""
        return f"{self.invariant!r} does not hold at {self.at.lsn}: {self.rows} rows break it"


@dataclass(frozen=True, slots=True)
class _Sheet:
    """A query with one row for each key of several tables, and what must hold in every row."""

    rows: str
    invariants: dict[str, str]


_SHEETS = (
    _Sheet(
        """
        select id, sum(known) as known, max(status) as status, sum(total) as total,
            sum(lines) as lines, sum(paid) as paid
        from (select id, 1 as known, status, total, 0 as lines, 0 as paid from orders
              union all select order_id, 0, null, 0, quantity * unit_price, 0 from order_lines
              union all select order_id, 0, null, 0, 0, amount from payments)
        group by id
        """,
        {
            "an order's total is the sum of its lines": "total = lines",
            "a paid order is paid in full, any other not at all": (
                "paid = if(status in ('paid', 'shipped'), total, 0)"
            ),
            "every line and every payment has its order": "known = 1",
        },
    ),
    _Sheet(
        """
        select sku, sum(known) as known, sum(stocked) as stocked, sum(on_hand) as on_hand,
            sum(sold) as sold, sum(delivered) as delivered
        from (select sku, 1 as known, 0 as stocked, 0 as on_hand, 0 as sold, 0 as delivered
                  from products
              union all select sku, 0, 1, on_hand, 0, 0 from stock
              union all select sku, 0, 0, 0, quantity, 0 from order_lines
              union all select sku, 0, 0, 0, 0, quantity from deliveries)
        group by sku
        """,
        {
            "stock and sold are what was delivered": "on_hand + sold = delivered",
            "stock, lines and deliveries have their product": "known = 1 and stocked = 1",
        },
    ),
    _Sheet(
        """
        select id, sum(known) as known, sum(spent) as spent, sum(paid) as paid
        from (select id, 1 as known, spent, 0 as paid from customers
              union all select customer_id, 0, 0, coalesce(amount, 0)
                  from orders left join payments on payments.order_id = orders.id)
        group by id
        """,
        {
            "what a customer spent is the sum of the payments": "spent = paid",
            "every order has its customer": "known = 1",
        },
    ),
)
INVARIANTS = tuple(name for sheet in _SHEETS for name in sheet.invariants)


def find_breaches(session: SparkSession, lake: Lake, at: Bound) -> list[Breach]:
    """Check every invariant, all tables read at one bound. Raises: LakeError."""
    exceptions = count_exceptions(answer_query(session, lake, QUESTION, at).rows)
    return [Breach(name, at, exceptions[name]) for name in INVARIANTS if exceptions[name]]


def count_exceptions(answer: DataFrame) -> dict[str, int]:
    """How many rows break each invariant, from the answer to `QUESTION`."""
    return {name: count for row in answer.collect() for name, count in row["exceptions"].items()}


def list_whole_cuts(lake: Lake, tables: Collection[TableName]) -> list[Bound]:
    """Every cut at which all of `tables` are whole, oldest first."""
    cuts = open_table(lake.cuts)
    if cuts is None:
        return []
    wanted = {str(table) for table in tables}
    rows = cuts.to_pyarrow_table(columns=["epoch", "cut_lsn", "tables", "partial"]).to_pylist()
    return sorted(
        {
            Bound(row["epoch"], Lsn(row["cut_lsn"]))
            for row in rows
            if wanted <= dict(row["tables"]).keys() and not wanted.intersection(row["partial"])
        }
    )


def _ask(sheet: _Sheet) -> str:
    """The SQL that counts, by name, the rows that break each invariant of a sheet."""
    counts = ", ".join(
        f'"{name}", count_if(not coalesce({condition}, false))'
        for name, condition in sheet.invariants.items()
    )
    return f"select map({counts}) as exceptions from ({sheet.rows})"  # noqa: S608 - all ours.


QUESTION = " union all ".join(map(_ask, _SHEETS))
