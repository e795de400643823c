"""A Spark driver that appends rows to a table in an object store, one row a commit.

Arguments: the table, the bucket's endpoint, the numbers of its first row and after its last one,
and the class that writes Spark's commits.
"""

from __future__ import annotations

import sys

from cdc_core.settings import SparkSettings
from spark_jobs.session import session as sessions
from spark_jobs.session.store_conf import StoreJars
from tests.fix_spark import STATE_FOLDER, TEST_CONF
from tests.lakes import describe_store

uri, endpoint, first, end, log_store = sys.argv[1:]
# A session refuses another class than Walgate's. Here it must not.
vars(sessions)["REQUIRED_CLASSES"] = ()
session = sessions.open_session(
    SparkSettings(
        master="local[1]",
        driver_memory="1g",
        conf=TEST_CONF | {"spark.delta.logStore.s3.impl": log_store},
    ),
    jars_folder=STATE_FOLDER / "jars",
    store=StoreJars(describe_store(endpoint), STATE_FOLDER / "s3-jars"),
)
print("ready", flush=True)  # noqa: T201 - The parent waits for it.
sys.stdin.readline()
for number in range(int(first), int(end)):
    session.range(number, number + 1).write.format("delta").mode("append").save(uri)
session.stop()
