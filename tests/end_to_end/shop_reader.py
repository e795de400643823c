"""Reads all tables of a shop many times, in a process of its own, and checks its invariants.

`python -m tests.end_to_end.shop_reader polars|spark FOLDER COUNT` reads the lake of the pipeline in
a folder. polars reads the newest cut, by the program of docs/reading.md, which does not use
Walgate. Spark reads by turns at `live` and at a random cut. The last line is the answer, as JSON:
the number of reads, the number of places at which they were made, and the broken invariants.
"""

from __future__ import annotations

import json
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from deltalake import DeltaTable

import walgate
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.demo.invariants import QUESTION, count_exceptions, list_whole_cuts
from orchestration.runs.spark import open_spark
from spark_jobs.lake.lake import Lake
from tests.deadline import wait_for
from tests.walgate_command import REPOSITORY

DEADLINE_S = 120.0
NAMES = ("customers", "deliveries", "order_lines", "orders", "payments", "products", "stock")
TABLES = [TableName("public", name) for name in NAMES]


def main(reader: str, folder: Path, count: int) -> None:
    """Read so many times, and write the answer."""
    warnings.simplefilter("error", walgate.TableWarning)  # Each table must be whole.
    read = {"polars": read_by_polars, "spark": read_by_spark}[reader]
    places, broken = list[str](), list[str]()
    for place, breaches in islice(read(folder), count):
        places.append(place)
        broken += [f"{breach} at {place}" for breach in breaches]
    answer = {"reads": len(places), "places": len({*places}), "broken": broken}
    sys.stdout.write(json.dumps(answer) + "\n")


def read_by_spark(folder: Path) -> Iterator[tuple[str, list[str]]]:
    config, chance = folder / "walgate.toml", random.Random(1)
    settings = load_settings(config, {})
    session, lake = open_spark(settings, is_diverting=False), Lake.of(settings)
    is_live = False
    while True:
        is_live = not is_live
        cut = chance.choice(list_whole_cuts(lake, TABLES))
        point = "live" if is_live else str(cut.lsn)
        opened = walgate.open(config).at(point)
        for name in NAMES:
            opened.table(name).to_spark(session).createOrReplaceTempView(name)
        exceptions = count_exceptions(session.sql(QUESTION))
        yield f"{opened.lsn} {point}", [name for name, count in exceptions.items() if count]


def read_by_polars(folder: Path) -> Iterator[tuple[str, list[str]]]:
    page = (REPOSITORY / "docs" / "reading.md").read_text()
    (code,) = re.findall(r"```python\n(import polars.*?)```", page, re.DOTALL)
    program: dict[str, Any] = {}
    exec(compile(code, "reading.md", "exec"), program)  # noqa: S102 - our own page.
    read_cut: Callable[..., dict[str, pl.LazyFrame]] = program["read_cut"]
    first: dict[str, pl.DataFrame] = {}
    ledger, newest = DeltaTable(folder / "lake" / "ledger" / "cuts"), -1
    while True:
        wait_for(partial(has_grown, ledger, newest), DEADLINE_S, "a new cut")
        newest = ledger.version()
        try:
            found = read_cut(str(folder / "lake"), list(map(str, TABLES)))
        except LookupError:  # The round of the newest cut left a table out.
            continue
        frames = {table.rpartition(".")[2]: frame.collect() for table, frame in found.items()}
        first = first or frames
        yield str(newest), find_broken(frames)
        if sort_lines(first) != sort_lines(frames):
            # Tables of two cuts must break an invariant, or the checks prove nothing.
            assert find_broken(frames | {"order_lines": first["order_lines"]})


def sort_lines(frames: dict[str, pl.DataFrame]) -> list[tuple[Any, ...]]:
    return sorted(frames["order_lines"].select("order_id", "line", "sku", "quantity").rows())


def has_grown(ledger: DeltaTable, version: int) -> bool:
    ledger.update_incremental()
    return ledger.version() > version


def find_broken(frames: dict[str, pl.DataFrame]) -> list[str]:
    """The invariants of the shop that do not hold."""
    lines, orders, payments = (frames[name] for name in ("order_lines", "orders", "payments"))
    total = (pl.col("quantity") * pl.col("unit_price")).sum().alias("lines")
    of_order = orders.join(
        lines.group_by("order_id").agg(total), left_on="id", right_on="order_id", how="full"
    )
    paid = payments.group_by("order_id").agg(pl.col("amount").sum().alias("paid"))
    of_payment = orders.join(paid, left_on="id", right_on="order_id", how="full")
    spent = of_payment.group_by("customer_id").agg(pl.col("paid").sum())
    of_customer = frames["customers"].join(spent, left_on="id", right_on="customer_id", how="full")
    sold = lines.group_by("sku").agg(pl.col("quantity").sum().alias("sold"))
    delivered = frames["deliveries"].group_by("sku").agg(pl.col("quantity").sum())
    of_stock = (
        frames["stock"]
        .join(sold, on="sku", how="full", coalesce=True)
        .join(delivered, on="sku", how="full", coalesce=True)
    )
    is_paid = pl.col("status").is_in(["paid", "shipped"])
    due = pl.when(is_paid).then(pl.col("total")).otherwise(0)
    return [
        name
        for name, frame, holds in (
            ("lines", of_order, pl.col("total") == pl.col("lines")),
            ("payments", of_payment, due == pl.col("paid").fill_null(0)),
            ("spent", of_customer, pl.col("spent") == pl.col("paid").fill_null(0)),
            (
                "stock",
                of_stock,
                pl.col("on_hand") + pl.col("sold").fill_null(0) == pl.col("quantity"),
            ),
        )
        if not frame.select(holds.fill_null(value=False).all()).item()
    ]


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
