"""What a task writes of a table's reads in some files of the log; and the bounds it tells."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.vocabulary import Lsn, Position
from spark_jobs.delta import file_writer
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_bounds import ColumnStatistics
from spark_jobs.fast_path import arrow_copy_task
from spark_jobs.fast_path.arrow_copy_task import ReadsToType, type_files
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.pg_types.arrow_rows import ArrowColumn
from spark_jobs.pg_types.arrow_texts import keep
from tests.lakes import locate_lake
from tests.spark.log_writer import LogWriter
from tests.spark.relations import insert, make_relation, mark, read

T = make_relation("t", "k int4, v text")
FIRST = datetime(1, 1, 1)  # noqa: DTZ001 - As a type without a zone has it.
LAST = datetime.max  # noqa: DTZ901


@pytest.mark.parametrize(
    ("kind", "values", "least", "most"),
    [
        (pa.string(), ["b", None, "a" * 40], "a" * 32, "b"),
        (pa.string(), ["a", "b" * 40], "a", "b" * 32 + "\U0010ffff"),
        (pa.string(), ["a", "b" * 32 + "\U0010ffff" + "c"], "a", None),
        (pa.float64(), [1.5, -2.0, None], -2.0, 1.5),
        (pa.float64(), [1.5, float("nan")], None, None),
        (pa.float64(), [1.5, float("-inf")], None, None),
        (pa.timestamp("us"), [FIRST + timedelta(microseconds=1001)], "0001-01-01T00:00:00.001",
         "0001-01-01T00:00:00.002"),
        (pa.timestamp("us"), [LAST], "9999-12-31T23:59:59.999", None),
        (pa.timestamp("us", "UTC"), [datetime(2026, 1, 1, tzinfo=UTC)], "2026-01-01T00:00:00.000Z",
         "2026-01-01T00:00:00.000Z"),
        (pa.decimal128(38, 18), [Decimal("0.1"), Decimal(10) ** 19], 0.1, 1e19),
        (pa.bool_(), [True, None, False], False, True),
        (pa.int16(), [None], None, None),
    ],
)  # fmt: skip
def test_a_bound_is_true_or_missing(
    kind: pa.DataType, values: list[Any], least: Any, most: Any
) -> None:
    rows = pa.table({"c": pa.array(values, kind), "_raw": pa.nulls(len(values)),
                     "_holes": pa.nulls(len(values))})  # fmt: skip
    bounds = ColumnStatistics(rows.schema)
    for batch in rows.to_batches(max_chunksize=1):
        bounds.add(batch)
    told = json.loads(bounds.format())
    assert (told["minValues"].get("c"), told["maxValues"].get("c")) == (least, most)
    assert told["nullCount"] == {
        "c": values.count(None), "_raw": len(values), "_holes": len(values)
    }  # fmt: skip


def test_a_task_takes_the_reads_of_its_table_and_range_alone(tmp_path: Path) -> None:
    log, attempt = SmallLog(tmp_path), Attempt(LocalPlace.of(tmp_path), 1, "a")
    other = make_relation("other", "k int4, v text")
    ends = [
        log.writer.add([read(T, "1", "below"), read(other, "1", "other")]),
        log.writer.add([read(T, "2", "a"), insert(T, "9", "no read"), mark(T)]),
        log.writer.add([read(other, "2", "other"), read(T, "3", None)]),
        log.writer.add([read(T, "4", "above")]),
    ]
    log.writer.commit()
    sources = [*log.lake.changes.list_matching("*.parquet")]
    wanted = ReadsToType(
        str(T.table),
        Bound(1, Lsn(ends[0])),
        Bound(1, Lsn(ends[2])),
        T.version,
        (ArrowColumn("k", keep), ArrowColumn("v", keep)),
        None,
    )
    (file,) = type_files(sources, wanted, attempt) or []
    rows = pq.read_table(file.path.uri)
    assert rows.select(["k", "v", "_epoch", "_commit_lsn", "_seq"]).to_pylist() == [
        {"k": "2", "v": "a", "_epoch": 1, "_commit_lsn": ends[1] - 8, "_seq": 0},
        {"k": "3", "v": None, "_epoch": 1, "_commit_lsn": ends[2] - 8, "_seq": 1},
    ]
    assert file.rows == 2
    # A position below where a sweep began is for Spark, and so is another width or version.
    at = Position(1, Lsn(ends[1] - 8), 0)
    for start in (at, replace(at, seq=1), replace(at, epoch=2)):
        typed = type_files(sources, replace(wanted, start=start), attempt)
        assert (typed is None) == (start != at), start
    assert type_files(sources, replace(wanted, columns=(ArrowColumn("k", keep),)), attempt) is None
    assert type_files(sources, replace(wanted, relation_version=7), attempt) is None
    nothing = replace(wanted, table="public.nothing")
    assert type_files(sources, nothing, attempt) == []
    assert len([*tmp_path.glob("part-*")]) == 2, "nothing is left behind"


def test_a_task_writes_groups_and_passes_over_those_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, attempt = SmallLog(tmp_path), Attempt(LocalPlace.of(tmp_path), 1, "a")
    for first in range(0, 90, 30):
        log.writer.add([read(T, str(key), "x" * 100) for key in range(first, first + 30)])
        log.writer.commit()
    sources = sorted(log.lake.changes.list_matching("*.parquet"))
    columns = (ArrowColumn("k", keep), ArrowColumn("v", keep))
    wanted = ReadsToType(
        str(T.table), None, Bound(1, Lsn(log.writer.lsn)), T.version, columns, None
    )
    monkeypatch.setattr(file_writer, "_GROUP_BYTES", 5_000)
    (file,) = type_files(sources, wanted, attempt) or []
    known = pq.read_metadata(file.path.uri)
    assert (known.num_rows, known.num_row_groups) == (90, 3)
    # What repeats is in a dictionary.
    encodings = {
        column.path_in_schema: "RLE_DICTIONARY" in column.encodings
        for column in (known.row_group(0).column(i) for i in range(known.num_columns))
    }
    assert encodings["v"]
    assert encodings["_commit_lsn"]
    assert not encodings["k"]
    monkeypatch.setattr(arrow_copy_task, "_MAX_GROUP_BYTES", 1_000)
    assert type_files(sources, wanted, attempt) is None


class SmallLog:
    """A log without a merge."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(locate_lake(folder / "lake"))
        self.writer = LogWriter(self.lake)
        self.writer.begin_epoch(16)
