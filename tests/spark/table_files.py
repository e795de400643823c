"""The files of a table, and limits by which they stay apart."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Relation
from spark_jobs.delta.attempts import Attempt
from spark_jobs.lake.lake import open_table
from spark_jobs.log import round_log
from spark_jobs.log.in_memory import LogInMemory
from spark_jobs.merge.rounds import Round
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import TableMergeResult
from tests.lakes import path_of
from tests.spark.small_lake import SmallLake

# No file gets further rows: rows that arrive make a file of their own. A Spark job rewrites files,
# as for large tables; by default, the driver rewrites the small tables of tests itself.
APART = MergeLimits(small_file_bytes=0, open_file_bytes=1, driver_bytes=0)


def read_each_file_apart(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have the round read no file of the log once for all tables; the limit by which no task does.

    The tasks run in processes of their own.
    """
    monkeypatch.setattr(round_log, "LogInMemory", partial(LogInMemory, shared_bytes=0))
    return 0


def find_result(rounds: list[Round], relation: Relation) -> TableMergeResult:
    """What the only round of a merge did to a table."""
    (done,) = rounds
    return done.tables[str(relation.table)]


def list_files(small: SmallLake, relation: Relation) -> dict[str, int]:
    """The files of a table as it is now, by name, and their sizes."""
    table = open_table(small.lake.locate(relation.table))
    assert table is not None
    return {
        file["path"]: file["size_bytes"] for file in pa.table(table.get_add_actions()).to_pylist()
    }


def list_unnamed(small: SmallLake, relation: Relation) -> list[str]:
    """The files in a table's folder that no commit of it names."""
    return _list_unnamed(path_of(small.lake.locate(relation.table)))


def require_nothing_left(folder: Path) -> None:
    """Fail if a table anywhere in a folder has traces of an attempt, or files without a commit."""
    for log in folder.rglob("_delta_log"):
        left = [*_list_unnamed(log.parent), *(log.parent / "_attempts").glob("*")]
        assert left == [], "something is left behind"


def _list_unnamed(table: Path) -> list[str]:
    commits = "".join(path.read_text("utf-8") for path in table.glob("_delta_log/*.json"))
    return [path.name for path in table.glob("*.parquet") if path.name not in commits]


def leave_attempt(small: SmallLake, relation: Relation) -> LakePlace:
    """Leave the record of an attempt that died; give the place of its only file, to be written."""
    dead = Attempt(small.lake.locate(relation.table), small.version(relation) + 1, "dead")
    dead.record.parent.make_folder()
    dead.record.write_text(json.dumps({"version": dead.version}))
    return dead.name_file()


def read_column(file: Path, column: str) -> list[Any]:
    """The values of a column in a file, deleted rows included."""
    return list(pq.read_table(file, columns=[column])[column].to_pylist())


def find_homes(small: SmallLake, relation: Relation, key: str = "k") -> dict[Any, str]:
    """The file of each key of a table; a key is in one file alone."""
    folder = small.lake.locate(relation.table)
    homes: dict[Any, str] = {}
    for name in list_files(small, relation):
        for value in read_column(path_of(folder / name), key):
            assert value not in homes
            homes[value] = name
    return homes
