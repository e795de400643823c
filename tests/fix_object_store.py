"""A real object store in memory: the S3 server of moto, in a process of its own on loopback.

In the process of the tests it would wait for the calls that it answers: delta-rs holds the lock of
the interpreter in some of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import ObjectStore
from tests.lakes import BUCKET, CREDENTIALS, describe_store
from tests.walgate_command import REPOSITORY

# The server ends at the end of its standard input, so it ends with the process of the tests.
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


@contextmanager
def run_store() -> Iterator[ObjectStore]:
    """Run a store with one empty bucket."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield describe_store(json.loads(server.stdout.readline()))
        finally:
            server.stdin.close()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """Lend the store of this process; take a root of your own with `object_lake`."""
    with run_store() as store:
        yield store


@pytest.fixture
def object_lake(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectPlace:
    """The root of an empty lake in the store, and the credentials for it in the environment."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    return ObjectPlace(f"s3://{BUCKET}/{uuid.uuid4()}", object_store)
