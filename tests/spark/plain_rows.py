"""Rows of every type that Arrow reads as Spark does, in texts that are plain, and hostile."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from pyspark.sql import functions as F

from cdc_core.vocabulary import Relation
from tests.spark.relations import make_relation
from tests.spark.small_lake import SmallLake

PLAIN = make_relation(
    "plain",
    "k int8, t text, u uuid, b bool, n numeric, f float8, d date, m timestamp, z timestamptz,"
    " x bytea, p numeric",
)
FIRST = datetime(1, 1, 1)  # noqa: DTZ001 - As a type without a zone has it.
WORDS = [
    "",
    "a",
    "é🐘",
    "x" * 40,
    "x" * 32 + "\U0010ffff",
    "\U0010ffff" * 33,
    "tab\there",
    "q'\"\\",
]


def make_row(rng: random.Random, key: int) -> list[str | None]:
    moment = FIRST + timedelta(microseconds=rng.randrange(315_537_897_599_999_999))
    row = [
        rng.choice(WORDS) + str(rng.randrange(3)),
        f"00000000-0000-0000-0000-{rng.randrange(10**12):012}",
        rng.choice("tf"),
        f"{rng.randrange(-(10**9), 10**9)}.{rng.randrange(10**6)}1",
        rng.choice(["NaN", "Infinity", "-0", "1e+30", "0.1", str(rng.random())]),
        f"{moment:%Y-%m-%d}".rjust(10, "0"),
        moment.isoformat(" ", "microseconds"),
        moment.isoformat(" ", "microseconds") + "+00",
        "\\x" + rng.randbytes(rng.randrange(4)).hex(),
        # `_raw` keeps some of these texts beside their value.
        f"{rng.randrange(-99, 99)}{rng.choice(['', '.5', '.50', '.0', '.10'])}",
    ]
    return [str(key), *(None if rng.random() < 0.1 else text for text in row)]


def read_json(small: SmallLake, relation: Relation) -> list[str]:
    path = str(small.lake.locate(relation.table))
    rows = small.spark.read.format("delta").load(path)
    # NaN and infinity are no JSON.
    plain = rows.withColumn("f", F.col("f").cast("string")) if "f" in rows.columns else rows
    return sorted(str(row[0]) for row in plain.select(F.to_json(F.struct("*"))).collect())
