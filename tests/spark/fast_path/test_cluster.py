"""Merges on a Spark standalone cluster of two workers: over a folder, and in an object store."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

import psutil
import pytest
from pyspark.sql import SparkSession

from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.object_place import ObjectPlace
from tests.deadline import wait_for
from tests.lakes import BUCKET, CREDENTIALS, STORE_VARIABLE, name_lake
from tests.spark.fast_path.cluster_child import CANARY, play
from tests.walgate_command import REPOSITORY

Rounds: TypeAlias = list[tuple[str, list[object]]]
CHILD = Path(__file__).with_name("cluster_child.py")


@contextmanager
def playing_on_cluster(
    folder: Path, master: str, code: Path, *, store: ObjectPlace | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Play on the cluster; end it with the block. Executors look for modules in `code` first."""
    env = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    if store is not None:
        env |= CREDENTIALS | {STORE_VARIABLE: dict(store.store.options)["aws_endpoint"]}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", str(CHILD), str(folder), master, str(code)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            yield child
        finally:
            child.terminate()


def read_answer(child: subprocess.Popen[str]) -> Rounds:
    said, complaints = child.communicate(timeout=600)
    assert child.returncode == 0, complaints[-3000:]
    rounds: Rounds = json.loads(said.splitlines()[-1])
    return rounds


def require_silence(folder: Path) -> None:
    """Check that the workers whose folders are in this one have written no key to their logs."""
    logs = [path for name in ("one", "two") for path in (folder / name).rglob("std*")]
    assert len(logs) >= 4, logs
    assert not [path for path in logs if CANARY in path.read_text(errors="replace")]


def list_rows(rounds: Rounds) -> list[object]:
    """The rows after each round, whatever way it took."""
    return [rows for _, rows in rounds]


def has_class(process: psutil.Process, name: str) -> bool:
    """Whether a process is a JVM with some main class."""
    try:
        return name in " ".join(process.cmdline())
    except psutil.Error:  # It has ended.
        return False


@pytest.fixture(scope="module")
def local(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    """What the same merges lead to in a local session."""
    folder = tmp_path_factory.mktemp("local")
    rounds: Rounds = json.loads(json.dumps(play(spark, folder), default=str))
    assert {way for way, _ in rounds} == {"append", "rewrite_files", "move_bound"}
    return rounds


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", ["folder", "store"])
def test_each_quick_way_leaves_the_same_rows_on_a_cluster(
    local: Rounds, tmp_path: Path, master: str, place: str, object_lake: ObjectPlace
) -> None:
    store = object_lake if place == "store" else None
    with playing_on_cluster(tmp_path / "cluster", master, REPOSITORY, store=store) as child:
        assert read_answer(child) == local
    require_silence(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("code", ["none", "another"])
def test_executors_without_this_code_leave_the_work_to_spark(
    local: Rounds, tmp_path: Path, master: str, code: str, object_lake: ObjectPlace
) -> None:
    folder = tmp_path / "code"
    for package in ("cdc_core", "spark_jobs"):
        if code == "another":
            shutil.copytree(REPOSITORY / package, folder / package)
        else:
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").touch()
    if code == "another":
        changed = folder / "spark_jobs" / "fast_path" / "rewrite_task.py"
        changed.write_text(changed.read_text() + "# Another version.\n")
    with playing_on_cluster(tmp_path / "cluster", master, folder, store=object_lake) as child:
        rounds = read_answer(child)
    assert "rewrite_files" not in {way for way, _ in rounds}
    assert list_rows(rounds) == list_rows(local)
    require_silence(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("victim", "said"),
    [("CoarseGrainedExecutorBackend", "Removing executor"), (".worker.Worker", "Removing worker")],
)
def test_an_executor_or_a_worker_that_is_killed_in_mid_merge_changes_no_result(
    local: Rounds, tmp_path: Path, master: str, object_lake: ObjectPlace, victim: str, said: str
) -> None:
    table = ObjectPlace(f"s3://{BUCKET}", object_lake.store)
    table /= name_lake(tmp_path / "cluster" / "lake") + "/tables/public/t"
    with playing_on_cluster(tmp_path / "cluster", master, REPOSITORY, store=object_lake) as child:
        # The second round runs, or is about to.
        wait_for((table / name_commit(2)).exists, 300.0, "a merged round")
        children = psutil.Process().children(recursive=True)
        next(process for process in children if has_class(process, victim)).kill()
        assert list_rows(read_answer(child)) == list_rows(local)
    assert said in (tmp_path / "cluster.log").read_text()
