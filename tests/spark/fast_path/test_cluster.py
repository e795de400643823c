"""The quick ways on a Spark standalone cluster of two workers over a shared folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.deadline import wait_for
from tests.spark.fast_path.cluster_child import play

CHILD = Path(__file__).with_name("cluster_child.py")
PROJECT = Path(__file__).parents[3]
CLASSES = "org.apache.spark.deploy"
LOOPBACK = "127.0.0.1"


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """A master and two workers of one core each; they end with the test."""
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    url = f"spark://{LOOPBACK}:{port}"
    log = tmp_path / "cluster.log"
    own = ["--host", LOOPBACK, "--webui-port", "0"]
    workers = [
        [f"{CLASSES}.worker.Worker", *own, "-c", "1", "-m", "700M", "-d", str(folder), url]
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    with ExitStack() as started, log.open("wb") as output:
        for arguments in ([f"{CLASSES}.master.Master", *own, "--port", str(port)], *workers):
            process = start(arguments, output.fileno())
            started.callback(process.wait)
            started.callback(process.terminate)
        wait_for(lambda: log.read_text().count("Registering worker") == 2, 120.0, "two workers")
        yield url


def start(arguments: list[str], output: int) -> subprocess.Popen[bytes]:
    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    env = os.environ | {"SPARK_HOME": str(home), "PYTHONPATH": str(PROJECT)}
    command = [str(home / "bin" / "spark-class"), *arguments]
    return subprocess.Popen(command, env=env, stdout=output, stderr=output)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_each_quick_way_leaves_the_same_rows_on_a_cluster(
    spark: SparkSession, tmp_path: Path, master: str
) -> None:
    local = json.loads(json.dumps(play(spark, tmp_path / "local"), default=str))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(CHILD), str(tmp_path / "cluster"), master],
        env=os.environ | {"PYTHONPATH": str(PROJECT)},
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    assert {way for way, _ in local} == {"append", "rewrite_files", "move_bound"}
    assert json.loads(done.stdout.splitlines()[-1]) == local
