"""A real object store on loopback, in a process of its own.

By default it is the S3 server of moto, in memory. With `--store versitygw` it is versitygw, whose
objects are files. In the process of the tests, moto would wait for the calls that it answers:
delta-rs holds the lock of the interpreter in some of them.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import ObjectStore
from tests.deadline import wait_for
from tests.lakes import BUCKET, CREDENTIALS, describe_store
from tests.walgate_command import REPOSITORY

_VERSITYGW = REPOSITORY / ".walgate" / "versitygw-v1.8.0"
_LOOPBACK = "127.0.0.1"
_DEADLINE_S = 60.0
# This server, too, ends when its standard input ends.
_PROGRAM = """
import json, sys
import boto3
from orchestration.demo.object_store import start_server
server = start_server(0)
endpoint = f"http://127.0.0.1:{server.port}"
store = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1",
                     aws_access_key_id="key", aws_secret_access_key="secret")
store.create_bucket(Bucket="lakes")
print(json.dumps(endpoint), flush=True)
sys.stdin.read()
"""
# Runs a command until standard input ends.
_UNTIL_INPUT_ENDS = '"$@" </dev/null >/dev/null & cat >/dev/null; kill $!; wait'


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--store",
        choices=("moto", "versitygw"),
        default="moto",
        help="the object store of the tests",
    )


@contextmanager
def run_store(kind: str) -> Iterator[ObjectStore]:
    """Run a store with one empty bucket."""
    if kind == "moto":
        with _running([sys.executable, "-c", _PROGRAM], {}) as server:
            assert server.stdout is not None
            yield describe_store(json.loads(server.stdout.readline()))
        return
    if not _VERSITYGW.exists():
        raise pytest.UsageError("versitygw is missing: run `make setup-soak`")
    with socket.socket() as free:
        free.bind((_LOOPBACK, 0))
        port: int = free.getsockname()[1]
    key = {
        "ROOT_ACCESS_KEY": CREDENTIALS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
    }
    with TemporaryDirectory() as folder:
        (Path(folder) / BUCKET).mkdir()
        command = [str(_VERSITYGW), "--port", f"{_LOOPBACK}:{port}", "--quiet", "posix", folder]
        with _running(["sh", "-c", _UNTIL_INPUT_ENDS, "sh", *command], key):
            wait_for(lambda: _accepts(port), _DEADLINE_S, "versitygw")
            yield describe_store(f"http://{_LOOPBACK}:{port}")


@contextmanager
def _running(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run a server that ends when its standard input ends, as it does with this process."""
    with subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        try:
            yield server
        finally:
            server.stdin.close()


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((_LOOPBACK, port)) == 0


@pytest.fixture(scope="session")
def object_store(pytestconfig: pytest.Config) -> Iterator[ObjectStore]:
    """Lend the store of this process; take a root of your own with `object_lake`."""
    with run_store(pytestconfig.getoption("--store")) as store:
        yield store


@pytest.fixture
def object_lake(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectPlace:
    """The root of an empty lake in the store, and the credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return ObjectPlace(f"s3://{BUCKET}/{uuid.uuid4()}", object_store)


@pytest.fixture
def _any_key(pytestconfig: pytest.Config) -> None:
    """Skip the test unless the store takes every key and signature, as moto does."""
    if pytestconfig.getoption("--store") != "moto":
        pytest.skip("the store checks keys and signatures")
