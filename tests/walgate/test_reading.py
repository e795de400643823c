"""`walgate.open`: tables at one LSN as Arrow, polars and Spark, with what they lack named."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
import sys
import traceback
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import walgate
import walgate.table
from cdc_core.settings import TableSettings, load_settings
from cdc_core.vocabulary import Lsn
from tests.lakes import path_of
from tests.spark.log_writer import EPOCH_START
from tests.spark.relations import Entry, delete, insert, make_relation, update
from tests.spark.small_lake import MERGE_ONLY, SmallLake
from tests.walgate.configured_lake import configure, open_lake, record_backfill
from walgate.spark_session import open_session

A = make_relation("a", "k int4, v text")
B = make_relation("B b", "k int4, v text")
KEYS = 6
MANY = 30_000  # Rows of several batches.
PAGE = Path(__file__).parent.parent.parent / "docs" / "reading.md"
SHOW = 'print(orders.select("k", "v").rows())'


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    """Lend a lake. Walgate folds in the session of the tests."""
    monkeypatch.setattr(walgate.table, "open_session", lambda _: spark)
    return SmallLake(spark, tmp_path)


def draw_transaction(rng: random.Random, rows: dict[int, str], number: int) -> list[Entry]:
    """Changes of both tables; `rows` becomes what each has afterwards."""
    key = rng.randrange(KEYS)
    if key not in rows:
        rows[key] = f"v{number}"
        return [insert(table, str(key), rows[key]) for table in (A, B)]
    if rng.random() < 0.3:
        del rows[key]
        return [delete(table, str(key), None) for table in (A, B)]
    rows[key] = f"v{number}"
    return [update(table, str(key), rows[key]) for table in (A, B)]


def test_all_tables_have_the_transactions_up_to_each_lsn_and_time(
    lake: SmallLake, seed: int
) -> None:
    rng = random.Random(seed)
    rows: dict[int, str] = {}
    model: dict[int, list[tuple[int, str]]] = {}
    cuts: set[int] = set()
    for number in range(7):
        (end,) = lake.commit(draw_transaction(rng, rows, number))
        model[end] = sorted(rows.items())
        if number == 2 or (number < 6 and rng.random() < 0.4):
            (done,) = lake.merge()
            cuts.add(done.cut.lsn)
    for table in (A, B):
        record_backfill(lake.lake.root, table, start=16, swept=32)
    opened = open_lake(lake.lake.root)
    newest = max(model)
    for end, expected in model.items():
        at = opened.at(str(Lsn(end)))
        time = EPOCH_START + timedelta(milliseconds=end)
        assert opened.at("live" if end == newest else time).lsn == at.lsn == str(Lsn(end))
        for table in (A, B):
            read = at.table(str(table.table))
            assert read.needs_spark == (end not in cuts)
            assert (read.halted, read.incomplete, read.lsn) == (None, None, at.lsn)
            assert sorted(read.to_polars().select("k", "v").rows()) == expected
    assert cuts != model.keys()
    for bound in (min(cuts), newest):
        read = opened.at(str(Lsn(bound))).table("a")
        assert lake.plain(read.to_spark(), A, "k", "v") == sorted(model[bound], key=repr)


def test_latest_is_the_newest_cut_and_tables_are_listed(lake: SmallLake) -> None:
    (done,) = lake.merge([insert(A, "1", "x"), insert(B, "1", "x")])
    lake.commit([insert(A, "2", "y")])
    at = open_lake(lake.lake.root).at()
    assert at.lsn == str(done.cut.lsn)
    assert at.tables() == [str(B.table), str(A.table)]
    read = at.table("a")
    with pytest.warns(walgate.TableWarning, match=r"public\.a: may lack rows: queued") as warned:
        assert read.to_polars().height == 1
    assert warned[0].filename == __file__


def test_a_halted_table_warns_and_is_read_up_to_its_halt(lake: SmallLake) -> None:
    lake.merge([insert(A, "1", "x")])
    (done,) = lake.merge([insert(make_relation("a", "k text, v text"), "z", "w")])
    assert done.halted
    record_backfill(lake.lake.root, A, start=16, swept=32)
    at = open_lake(lake.lake.root).at()
    read = at.table("a")
    assert read.incomplete is None
    assert (read.lsn, at.lsn) == ("0/28", str(done.cut.lsn))
    with pytest.warns(walgate.TableWarning, match=r"public\.a: halted at 0/28: .*Fix: "):
        assert [row["v"] for row in read.to_arrow().to_pylist()] == ["x"]


def test_the_error_for_an_unknown_table_lists_the_tables(lake: SmallLake) -> None:
    lake.merge([insert(A, "1", "x"), insert(B, "1", "x")])
    at = open_lake(lake.lake.root).at()
    with pytest.raises(
        walgate.LakeError, match=r'public\.c: expected one of public\."B b", public\.a'
    ):
        at.table("c")
    for name in ("a.b.c", ""):
        with pytest.raises(walgate.ConfigurationError, match="not a table name"):
            at.table(name)


def test_a_table_that_a_round_left_out_is_folded_up_to_the_cut(lake: SmallLake) -> None:
    lake.merge([insert(A, "1", "x"), insert(B, "1", "x")])
    lake.merge([insert(A, "2", "y"), insert(B, "2", "y")], tables=[str(A.table)])
    for table in (A, B):
        record_backfill(lake.lake.root, table, start=16, swept=32)
    at = open_lake(lake.lake.root).at()
    read, left_out = at.table("a"), at.table(str(B.table))
    assert (read.needs_spark, left_out.needs_spark) == (False, True)
    for one in (read, left_out):
        assert sorted(one.to_arrow()["v"].to_pylist()) == ["x", "y"]
        assert one.lsn == at.lsn


def test_rows_are_of_the_table_that_was_opened(lake: SmallLake) -> None:
    lake.merge([insert(A, "1", "x")])
    record_backfill(lake.lake.root, A, start=16, swept=32)
    read = open_lake(lake.lake.root).at().table("a")
    # A person deletes the folder. Merges build the table again, up to the same version number.
    shutil.rmtree(path_of(lake.lake.locate(A.table)))
    lake.merge([insert(A, "2", "y")])
    with pytest.raises(walgate.LakeError, match="which a cut names, is gone"):
        read.to_arrow()


def test_a_session_of_the_program_is_left_alone(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.merge([insert(A, "1", "x")])
    record_backfill(lake.lake.root, A, start=16, swept=32)
    settings = load_settings(configure(lake.lake.root), {})
    with pytest.raises(walgate.ConfigurationError, match="a Spark session that Walgate did not"):
        open_session(settings)
    monkeypatch.setattr(walgate.table, "open_session", open_session)
    lake.commit([insert(A, "2", "y")])
    opened = open_lake(lake.lake.root)
    for point, count in (("latest", 1), ("live", 2)):
        read = opened.at(point).table("a")
        assert read.to_spark(lake.spark.newSession()).count() == count
        assert (read.halted, read.lsn) == (None, opened.at(point).lsn)
        assert read.to_arrow().num_rows == count


def test_an_error_of_spark_is_one_line_without_values(
    lake: SmallLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.merge([insert(A, "1", "x")])
    lake.commit([insert(A, "2", "y")])

    def fail(*_: object) -> None:
        hostile = "c4n4" + "ry"  # Not in a line of this file, which the traceback shows.
        lake.spark.sql(f"select cast(v as int) from values ('{hostile}') as t(v)").collect()

    monkeypatch.setattr("spark_jobs.query.as_of.table_at", fail)
    with pytest.raises(walgate.LakeError, match=r"Spark could not read public\.a: .*") as caught:
        open_lake(lake.lake.root).at("live").table("a").to_arrow()
    assert "c4n4ry" not in "".join(traceback.format_exception(caught.value))


def test_deletion_vectors_hide_rows_of_any_row_group(lake: SmallLake) -> None:
    lake.limits = MERGE_ONLY
    rules = {str(A.table): TableSettings(deletion_vectors=True)}
    lake.lake = replace(lake.lake, rules=rules)
    keys = range(MANY)
    lake.merge([insert(A, str(key), "x" * 20) for key in keys])
    lake.merge([delete(A, str(key), None) for key in keys if key % 7 == 3])
    record_backfill(lake.lake.root, A, start=16, swept=32)
    rows = open_lake(lake.lake.root).at().table("a").to_arrow()
    assert sorted(rows["k"].to_pylist()) == [key for key in keys if key % 7 != 3]


def test_a_missing_data_file_names_the_version(lake: SmallLake) -> None:
    lake.merge([insert(A, "1", "x")])
    record_backfill(lake.lake.root, A, start=16, swept=32)
    read = open_lake(lake.lake.root).at().table("a")
    for file in path_of(lake.lake.locate(A.table)).glob("*.parquet"):
        file.unlink()
    with pytest.raises(walgate.LakeError, match=r"version 1 of public\.a, which a cut names"):
        read.to_arrow()


def test_without_a_configuration_the_fix_is_named(tmp_path: Path) -> None:
    with pytest.raises(walgate.ConfigurationError, match="walgate init"):
        walgate.open(tmp_path / "walgate.toml")


def test_what_is_not_a_point_of_the_log_is_refused(lake: SmallLake) -> None:
    opened = open_lake(lake.lake.root)
    for point in ("yesterday", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))):
        with pytest.raises(walgate.ConfigurationError):
            opened.at(point)


def test_rows_at_a_cut_need_no_java(lake: SmallLake) -> None:
    orders = make_relation("orders", "k int4, v text")
    lake.merge([insert(orders, "1", "x")])
    record_backfill(lake.lake.root, orders, start=16, swept=32)
    (program,) = re.findall(r"```python\n(import walgate.*?)```", PAGE.read_text(), re.DOTALL)
    environment = {"JAVA_HOME": "/nowhere", "PATH": "/nowhere", "PYTHONPATH": str(PAGE.parents[1])}
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", program + SHOW],
        env=environment,
        cwd=configure(lake.lake.root).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stdout == "[(1, 'x')]\n", answer.stderr
