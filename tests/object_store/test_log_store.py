"""Spark's class for commits in an object store, called as Delta calls it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc_core.errors import ConfigurationError
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import ObjectStore
from spark_jobs.session.store_conf import StoreJars, configure_store
from spark_jobs.session.store_jar import LOG_STORE, locate_store_jar
from tests.fix_spark import find_java
from tests.store_proxy import Request, StoreProxy
from tests.walgate_command import REPOSITORY

# Writes each of some texts under one name, and says which of them were refused.
PROGRAM = """
import io, json, sys
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake
from py4j.protocol import Py4JJavaError
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.settings import SparkSettings
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.direct_parquet import read_files
from spark_jobs.session.session import open_session
from spark_jobs.session.store_conf import StoreJars
from tests.lakes import describe_store
from tests.fix_spark import STATE_FOLDER, TEST_CONF
uri, endpoint = sys.argv[1:]
session = open_session(
    SparkSettings(master="local[1]", driver_memory="1g", conf=TEST_CONF),
    jars_folder=STATE_FOLDER / "jars",
    store=StoreJars(describe_store(endpoint), STATE_FOLDER / "s3-jars"),
)
jvm, hadoop = session._jvm, session.sparkContext._jsc.hadoopConfiguration()
store = jvm.walgate.ConditionalLogStore(hadoop)
refused = []
for text, overwrite, times in json.load(sys.stdin):
    lines = jvm.java.util.ArrayList()
    lines.add(text * times)
    try:
        store.write(jvm.org.apache.hadoop.fs.Path(uri), lines.iterator(), overwrite, hadoop)
        refused.append(None)
    except Py4JJavaError as error:
        refused.append(error.java_exception.getClass().getSimpleName())
print(json.dumps(refused))
# Two tasks write files, twice. A run of a task that Spark gave up has left another one.
table = ObjectPlace(uri, describe_store(endpoint)).parent.parent
attempt = Attempt(table, 1, "attempt")
(table / "part-attempt-left.parquet").write_text("half")
writes = [attempt.take_from_spark(session.range(9).repartition(2).write.parquet) for _ in range(2)]
left = [*(table / "_attempts").list_matching()]
print(json.dumps([[file.name for file in files] for files in writes] + [len(left)]))
# Some files of a table with more of them.
many = table.parent / "many"
for key in range(12):
    options = many.find_options()
    write_deltalake(many.uri, pa.table({"k": [key]}), mode="append", storage_options=options)
opened = open_delta(many)
names = sorted(pa.table(opened.get_add_actions())["path"].to_pylist())[2:]
rows = read_files(session, many, opened, names)
own = [pq.read_table(io.BytesIO((many / name).read_bytes()))["k"][0].as_py() for name in names]
print(json.dumps(sorted(row.k for row in rows.collect()) == sorted(own)))
(many / names[3]).remove()
try:
    read_files(session, many, opened, names)
except FileNotFoundError as error:
    print(json.dumps(error.filename.endswith(names[3])))
"""


def test_a_commit_needs_a_free_name_and_each_file_gets_its_last_name(
    object_lake: ObjectPlace,
) -> None:
    java = find_java()
    assert java is not None
    commit = object_lake / "t/_delta_log/00000000000000000001.json"
    # The second write of the first text is that of a writer whose first reply was lost. The fourth
    # commit is larger than a part of an upload.
    writes = [
        ("first", False, 1),
        ("second", False, 1),
        ("first", False, 1),
        ("a large commit", False, 2_000_000),
        ("third", True, 1),
    ]
    requests: list[Request] = []
    with StoreProxy(object_lake.store).run() as proxy:
        proxy.choose = requests.append
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, commit.uri, dict(proxy.store.options)["aws_endpoint"]],
            input=json.dumps(writes),
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
            env={**os.environ, "JAVA_HOME": str(java)},
        )
    assert done.returncode == 0, done.stderr
    refused, (first, second, left), read, named = map(json.loads, done.stdout.splitlines()[-4:])
    assert refused == [None, *["FileAlreadyExistsException", None] * 2]
    assert not [one for one in requests if "upload" in one.path], "each commit is one request"
    assert sum(one.is_conditional_write for one in requests) >= 4
    assert commit.read_text() == "third\n"
    table = commit.parent.parent
    found = {file.name for file in table.list_matching("part-*")}
    assert found == {*first, *second, "part-attempt-left.parquet"}
    assert len(found) == len(first) + len(second) + 1, "each run of a task has names of its own"
    assert len(first) == 2
    assert left == 0
    assert read, "the rows of the wanted files, and no others"
    assert named, "a file that is missing"
    looks = [one for one in requests if one.method == "HEAD" and "/many/part-" in one.path]
    assert len(looks) <= 10, "one for each file that is opened"
    rows = [pq.read_table(io.BytesIO((table / name).read_bytes())) for name in first]
    assert sorted(pa.concat_tables(rows)["id"].to_pylist()) == [*range(9)]


def test_spark_gets_the_options_of_the_store_and_the_credentials_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    options = {"aws_region": "eu-north-1", "aws_endpoint": "http://store", "aws_allow_http": "true"}
    conf = configure_store(ObjectStore("lakes", tuple(options.items())))
    assert conf["spark.delta.logStore.s3.impl"] == LOG_STORE
    for_tasks = {key: value for key, value in conf.items() if key.startswith("spark.executorEnv.")}
    assert for_tasks == {
        "spark.executorEnv.AWS_ACCESS_KEY_ID": "key",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "secret",
        "spark.executorEnv.AWS_SESSION_TOKEN": "token",
    }
    s3a = {
        key.removeprefix("spark.hadoop.fs.s3a."): value
        for key, value in conf.items()
        if ".s3a." in key
    }
    assert s3a == {
        "connection.ssl.enabled": "false",
        "path.style.access": "true",
        "endpoint.region": "eu-north-1",
        "endpoint": "http://store",
        "fast.upload.buffer": "bytebuffer",
        "fast.upload.active.blocks": "4",
        "multipart.size": "16M",
        "access.key": "key",
        "secret.key": "secret",
        "session.token": "token",
        "aws.credentials.provider": "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    }


@pytest.mark.parametrize("endpoint", [None, "https://store"])
def test_spark_encrypts_unless_the_endpoint_says_otherwise(endpoint: str | None) -> None:
    options = {"aws_region": "eu-north-1", "aws_allow_http": "true"}
    options |= {} if endpoint is None else {"aws_endpoint": endpoint}
    conf = configure_store(ObjectStore("lakes", tuple(options.items())))
    assert conf["spark.hadoop.fs.s3a.connection.ssl.enabled"] == "true"


def test_missing_jars_are_named(tmp_path: Path) -> None:
    jars = StoreJars(ObjectStore("lakes"), tmp_path)
    with pytest.raises(ConfigurationError, match=r"lacks walgate-store-.*\.jar") as caught:
        jars.list_jars()
    assert caught.value.fix == "run `make setup-s3`"
    needed = [locate_store_jar(tmp_path), tmp_path / "hadoop-aws-3.5.0.jar"]
    for jar in needed:
        jar.touch()
    assert set(jars.list_jars()) == set(needed)
