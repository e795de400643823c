"""A table that is older than its cut is seen by `walgate status`; no server, no Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc_core.vocabulary import Lsn, TableName
from orchestration.status.status import _list_table_problems, _Progress, _tell_state
from spark_jobs.lake.lake import Bound, Epoch, Lake
from spark_jobs.lake.ledger import Cut
from spark_jobs.schema.evolution import TABLE_KEY
from spark_jobs.target.older_targets import inspect_targets
from tests.lakes import locate_lake, path_of

T = TableName("public", "t")
EPOCH = Epoch(1, "7301", Lsn(1))
# The least that tells a table from one that another writer has put in its place.
KEPT = {TABLE_KEY: json.dumps([1, None, 0, []])}
ROWS = pa.table({"k": [1]}, pa.schema([pa.field("k", pa.int64(), metadata=KEPT)]))
OTHERS = pa.table({"k": [1]})
CUT = Cut(
    Bound(1, Lsn(90)),
    None,
    datetime(2026, 1, 1, tzinfo=UTC),
    "run",
    versions={"public.t": 1},
    merged={"public.t": Bound(1, Lsn(90))},
    held={"public.t": Bound(1, Lsn(80))},
)


def write(folder: Path, *bounds: int) -> None:
    """Write a table whose commits reach these bounds; 0 is a commit of another."""
    for lsn in bounds:
        reached = [Transaction(EPOCH.app, lsn)] if lsn else []
        properties = CommitProperties(app_transactions=reached)
        write_deltalake(folder, ROWS, mode="append", commit_properties=properties)


def restore(folder: Path, *bounds: int) -> None:
    shutil.rmtree(folder)
    write(folder, *bounds)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Lend a lake with a table that is as the cut says."""
    made = Lake(locate_lake(tmp_path / "lake"))
    write(path_of(made.locate(T)), 40, 80)
    return made


@pytest.mark.parametrize(
    ("happen", "age", "is_seen_at_once"),
    [
        (shutil.rmtree, "its folder is gone, but the newest cut names its version 1", True),
        (
            lambda f: write_deltalake(f, OTHERS, mode="overwrite", schema_mode="overwrite"),
            "another writer has replaced it since version 1, which the newest cut names",
            False,
        ),
        (lambda f: restore(f, 40), "it is at version 0, but the newest cut names version 1", True),
        (
            lambda f: restore(f, 40, 0, 0),
            "it has merged LSN 0/28, but the newest cut names merged LSN 0/50",
            False,
        ),
    ],
    ids=["deleted", "replaced", "restored", "restored_and_written_on"],
)
def test_a_table_older_than_its_cut_is_not_passed_off_as_streaming(
    lake: Lake, happen: Callable[[Path], None], age: str, *, is_seen_at_once: bool
) -> None:
    assert inspect_targets(lake, CUT.places, [EPOCH], is_thorough=True).older == {}
    happen(path_of(lake.locate(T)))
    older = inspect_targets(lake, CUT.places, [EPOCH], is_thorough=True).older
    assert older == {"public.t": age}
    at_once = inspect_targets(lake, CUT.places, [EPOCH], is_thorough=False).older
    assert at_once == (older if is_seen_at_once else {})
    progress = _Progress(cut=CUT, older=older)
    state = _tell_state("public.t", None, progress)
    assert (state.state, state.reason) == ("halted", age)
    (problem,) = _list_table_problems(progress)
    assert (problem["code"], problem["severity"]) == ("table_older", "error")


def test_a_table_whose_epoch_is_forgotten_is_compared_by_its_version(lake: Lake) -> None:
    later = Epoch(2, "7301", Lsn(1))
    assert inspect_targets(lake, CUT.places, [later], is_thorough=True).older == {}
    shutil.rmtree(path_of(lake.locate(T)))
    assert inspect_targets(lake, CUT.places, [later], is_thorough=True).older


def test_a_table_that_went_on_since_the_cut_is_not_older(lake: Lake) -> None:
    write(path_of(lake.locate(T)), 120)
    assert inspect_targets(lake, CUT.places, [EPOCH], is_thorough=True).older == {}
