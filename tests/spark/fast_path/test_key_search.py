"""Keys of many types, spread over files: no statistics hide the file that has a key."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Relation
from spark_jobs.fast_path.arrow_fold import ArrowOutcome
from spark_jobs.fast_path.file_rewrite import _list_files
from spark_jobs.fast_path.rewrite_task import _ChangedKeys
from spark_jobs.lake.lake import open_table
from spark_jobs.target.result import WritePlan
from tests.spark.plain_rows import FIRST, WORDS
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import SmallLake
from tests.spark.table_files import APART, find_result, list_files

SEED = 20261123
# Around the 32 characters to which statistics of texts are cut, and of each length in UTF-8.
CUT = "x" * 31
TEXTS = [
    *WORDS,
    *(CUT + end for end in ("", "x", "xx", "x\x7f", "xé", "x🐘", "\U0010ffff", "\U0010ffff" * 2)),
    *("\x01", "\x7f", "é" * 40, "🐘" * 40, "\ufffd" * 33, "\ue000", "Z", "z", "\U0010ffff"),
]
Make = Callable[[random.Random], str]


def read_rows(file: LakePlace) -> pa.Table:
    with open_input(file) as source:
        return pq.read_table(source)


def make_moment(rng: random.Random) -> datetime:
    edges = [FIRST, datetime(9999, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001 - As FIRST.
    near = FIRST + timedelta(days=700_000, microseconds=rng.randrange(5_000))
    far = FIRST + timedelta(microseconds=rng.randrange(315_537_897_599_999_999))
    return rng.choice([*edges, near, near, far])


def make_integer(bits: int) -> Make:
    most = 2 ** (bits - 1) - 1
    edges = [-most - 1, -most, -1, 0, 1, most - 1, most, 2**53 + 1 & most]
    return lambda rng: str(rng.choice([*edges, rng.randrange(60), rng.randrange(-most, most)]))


MAKES: dict[str, Make] = {
    "int4": make_integer(32),
    "int8": make_integer(64),
    "text": lambda rng: rng.choice([*TEXTS, rng.choice(TEXTS) + rng.choice("abc")]),
    "uuid": lambda rng: f"{rng.randrange(90):08x}-0000-0000-0000-{'0f'[rng.randrange(2)] * 12}",
    "bool": lambda rng: rng.choice("tf"),
    "bytea": lambda rng: "\\x" + rng.choice(["", "00", "7f", "80", "ff"]) * rng.randrange(40),
    "date": lambda rng: f"{make_moment(rng):%Y-%m-%d}".rjust(10, "0"),
    "timestamp": lambda rng: make_moment(rng).isoformat(" ", "microseconds"),
    "numeric": lambda rng: f"{rng.randrange(-(10**19), 10**19)}.{rng.randrange(90)}1",
}
# Each table has the texts of its key once more: `own` names the row whatever the key's type is.
EXACT = [
    make_relation("of_int4", "k int4, own text, v text"),
    make_relation("of_int8", "k int8, own text, v text"),
    make_relation("of_text", "k text, own text, v text"),
    make_relation("of_uuid", "k uuid, own text, v text"),
    make_relation("of_bytea", "k bytea, own text, v text"),
    make_relation("of_text_and_int4", "b int4, own text, v text, a text", key="a b"),
    make_relation("of_bool_and_int8", "a bool, b int8, own text, v text", key="a b"),
    make_relation("of_three", "a bytea, b uuid, c int4, own text, v text", key="c a b"),
]
# Different texts may have the same value, so the texts are the key, and Spark merges.
INEXACT = [
    make_relation("of_date", "k date, own text, v text"),
    make_relation("of_timestamp", "k timestamp, own text, v text"),
    make_relation("of_numeric", "k numeric, own text, v text"),
    make_relation("of_int4_and_date", "a int4, b date, own text, v text", key="a b"),
]
Rows = dict[str, dict[str, list[str | None]]]


def make_changes(rng: random.Random, relation: Relation, rows: Rows) -> list[Entry]:
    """One transaction of a few changes: of keys that the table has, and of others."""
    known, entries = rows.setdefault(str(relation.table), {}), []
    touched: set[str] = set()
    for _ in range(rng.randint(3, 6)):
        texts: list[str | None] = [
            MAKES[column.type_name](rng) if column.key_ordinal else None
            for column in relation.columns
        ]
        if known and rng.random() < 0.6:
            texts = [*rng.choice([*known.values()])]
        own = "|".join(str(texts[i]) for i in relation.key)
        if own in touched:
            continue
        touched.add(own)
        names = [column.name for column in relation.columns]
        texts[names.index("own")], texts[names.index("v")] = own, rng.choice("abc") * 3
        if own not in known:
            entries.append(insert(relation, *texts))
        elif rng.random() < 0.3:
            sent = [text if i in relation.key else None for i, text in enumerate(texts)]
            entries.append(delete(relation, *sent))
            del known[own]
            continue
        else:
            entries.append(update(relation, *texts))
        known[own] = texts
    return entries


def rewrite_by_delta(small: SmallLake, relation: Relation) -> None:
    """Have Delta write a table's rows to three files, with its own statistics."""
    place = str(small.lake.locate(relation.table))
    rows = small.spark.read.format("delta").load(place).repartition(3)
    rows.write.format("delta").mode("overwrite").save(place)


def check_statistics(small: SmallLake, relation: Relation) -> int:
    """No file that has a key is hidden from it; how many others are."""
    folder = small.lake.locate(relation.table)
    table = open_table(folder)
    assert table is not None
    key = [relation.columns[i].name for i in relation.key]
    files = _list_files(table, key[0])
    held = {file.name: read_rows(folder / file.name) for file in files}
    hidden = 0
    for name, rows in held.items():
        for place in range(rows.num_rows):
            row = rows.slice(place, 1)
            gone = row.select([*key, "_epoch", "_commit_lsn", "_seq"]).slice(0, 0)
            named = _ChangedKeys(ArrowOutcome(row, gone, gone), key).search
            found = {file.name for file in files if named.may_be_in(file)}
            assert name in found, (relation.table, row.select(key).to_pylist())
            hidden += len(files) - len(found)
    return hidden


def make_tables(small: SmallLake, relations: list[Relation], rng: random.Random) -> Rows:
    """Tables of three files by Delta, with a few rows each."""
    rows = Rows()
    small.merge(*(make_changes(rng, relation, rows) for relation in relations for _ in range(4)))
    for relation in relations:
        rewrite_by_delta(small, relation)
    return rows


def list_rows(relation: Relation, rows: Rows) -> list[tuple[str | None, ...]]:
    names = [column.name for column in relation.columns]
    own, v = names.index("own"), names.index("v")
    return sorted(((t[own], t[v]) for t in rows[str(relation.table)].values()), key=repr)


def read_files(small: SmallLake, relation: Relation) -> list[tuple[str | None, ...]]:
    """The rows of all files of a table, of which no row is deleted by a vector."""
    folder = small.lake.locate(relation.table)
    read = [
        read_rows(folder / name).select(["own", "v"]).to_pylist()
        for name in list_files(small, relation)
    ]
    return sorted(((row["own"], row["v"]) for file in read for row in file), key=repr)


@pytest.mark.parametrize("seed", [SEED, pytest.param(SEED + 1, marks=pytest.mark.soak)])
def test_a_row_is_found_by_its_key_whatever_the_type(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")  # noqa: T201 - pytest shows it if the test fails.
    rng, small = random.Random(seed), SmallLake(spark, tmp_path, limits=APART)
    rows = make_tables(small, EXACT, rng)
    most_files = dict.fromkeys((relation.table for relation in EXACT), 0)
    for _ in range(7):
        (done,) = small.merge(*(make_changes(rng, relation, rows) for relation in EXACT))
        ways = [merged.way for merged in done.tables.values()]
        assert ways == [WritePlan.REWRITE_FILES] * len(EXACT)
        for relation in EXACT:
            assert read_files(small, relation) == list_rows(relation, rows), relation.table
            files = len(list_files(small, relation))
            most_files[relation.table] = max(most_files[relation.table], files)
    for relation in EXACT:
        assert small.rows(relation, "own", "v") == list_rows(relation, rows), relation.table
    assert min(most_files.values()) >= 3
    hidden = {str(relation.table): check_statistics(small, relation) for relation in EXACT}
    assert all(hidden[f"public.of_{kind}"] for kind in ("int4", "int8", "text", "uuid", "three"))


def test_a_row_is_found_by_a_key_that_arrow_leaves_to_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A MERGE skips files by their statistics, too."""
    print(f"seed {SEED}")  # noqa: T201 - pytest shows it if the test fails.
    rng = random.Random(SEED)
    small = SmallLake(spark, tmp_path, limits=replace(APART, small_table_bytes=0))
    rows = make_tables(small, INEXACT, rng)
    assert min(len(list_files(small, relation)) for relation in INEXACT) >= 2
    for _ in range(2):
        (done,) = small.merge(*(make_changes(rng, relation, rows) for relation in INEXACT))
        assert {merged.way for merged in done.tables.values()} == {WritePlan.MERGE}
        for relation in INEXACT:
            assert small.rows(relation, "own", "v") == list_rows(relation, rows), relation.table


# A reader that joins the halves of such a character wrongly takes it for a smaller one.
@pytest.mark.parametrize("text", ["\U00020bb7", "\U0010ffff", "x" * 32 + "\U00100000"])
def test_a_row_is_found_by_a_text_with_a_character_of_four_bytes(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    small = SmallLake(spark, tmp_path, limits=APART)
    of_text = make_relation("of_text", "k text, v text")
    small.merge([insert(of_text, "a", "a")])
    small.merge([insert(of_text, text, "a")])
    assert check_statistics(small, of_text) > 0
    merged = find_result(small.merge([update(of_text, text, "b")]), of_text)
    assert merged.way is WritePlan.REWRITE_FILES
    assert (merged.inserted, merged.updated) == (0, 1)
    assert small.rows(of_text) == sorted([("a", "a"), (text, "b")], key=repr)
