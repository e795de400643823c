"""A Spark standalone cluster of two workers on loopback."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from tests.deadline import wait_for
from tests.walgate_command import REPOSITORY

_CLASSES = "org.apache.spark.deploy"
_LOOPBACK = "127.0.0.1"
# What a driver needs beside the address of its master: executors that fit the workers.
CLUSTER_CONF = {"spark.cores.max": "2", "spark.executor.memory": "600m"}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Lend a master with two workers of one core each, by its URL; they end with the test."""
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port = free.getsockname()[1]
    url = f"spark://{_LOOPBACK}:{port}"
    log = tmp_path / "cluster.log"
    own = ["--host", _LOOPBACK, "--webui-port", "0"]
    workers = [
        [f"{_CLASSES}.worker.Worker", *own, "-c", "1", "-m", "700M", "-d", str(folder), url]
        for folder in (tmp_path / "one", tmp_path / "two")
    ]
    with ExitStack() as started, log.open("wb") as output:
        for arguments in ([f"{_CLASSES}.master.Master", *own, "--port", str(port)], *workers):
            process = _start(arguments, output.fileno())
            started.callback(process.wait)
            started.callback(process.terminate)
        wait_for(lambda: log.read_text().count("Registering worker") == 2, 120.0, "two workers")
        yield url


def _start(arguments: list[str], output: int) -> subprocess.Popen[bytes]:
    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    env = os.environ | {"SPARK_HOME": str(home), "PYTHONPATH": str(REPOSITORY)}
    command = [str(home / "bin" / "spark-class"), *arguments]
    return subprocess.Popen(command, env=env, stdout=output, stderr=output)
