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
# What master, workers and driver share.
_PROTECTIONS = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "c4n4ry-0f-th3-clust3r",
    "spark.network.crypto.enabled": "true",
}
# What a driver needs beside the address of its master. Its executors fit the workers.
CLUSTER_CONF = {"spark.cores.max": "2", "spark.executor.memory": "600m", **_PROTECTIONS}


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """Lend a master with two workers of one core each, by its URL; they end with the test.

    They take only those who know the secret of `CLUSTER_CONF`.
    """
    defaults = tmp_path / "conf" / "spark-defaults.conf"
    defaults.parent.mkdir()
    defaults.write_text("".join(f"{key} {value}\n" for key, value in _PROTECTIONS.items()))
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
            process = _start(arguments, output.fileno(), conf=defaults.parent)
            started.callback(process.wait)
            started.callback(process.terminate)
        wait_for(lambda: log.read_text().count("Registering worker") == 2, 120.0, "two workers")
        yield url


def _start(arguments: list[str], output: int, *, conf: Path) -> subprocess.Popen[bytes]:
    assert pyspark.__file__ is not None
    home = Path(pyspark.__file__).parent
    own = {"SPARK_HOME": str(home), "SPARK_CONF_DIR": str(conf), "PYTHONPATH": str(REPOSITORY)}
    env = os.environ | own
    command = [str(home / "bin" / "spark-class"), *arguments]
    return subprocess.Popen(command, env=env, stdout=output, stderr=output)
