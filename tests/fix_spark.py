"""The one SparkSession of a test run, opened as Walgate opens it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc_core.settings import SparkSettings
from spark_jobs.session.session import open_session
from spark_jobs.session.store_conf import StoreJars
from tests.lakes import find_store
from tests.requirement import report_missing

STATE_FOLDER = Path(__file__).parent.parent / ".walgate"

# Small jobs on two cores: the first compiler only, one thread of collector, classes of checked JARs
# taken as they are (a quarter of the time of a first merge), no web page, few partitions.
_JAVA_OPTIONS = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)
# Plans are interpreted: compiling them takes a third of the time of a small job. The demo's tests
# and the benchmark compile them, as users do, and so does `make soak`.
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
TEST_CONF = {
    **({} if "WALGATE_COMPILED_PLANS" in os.environ else _INTERPRETED),
    "spark.driver.extraJavaOptions": " ".join(_JAVA_OPTIONS),
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
}
# For merges of many tiny tables. Each table's plans are its own: to compile them, and to plan them
# for parallel work, takes most of such a merge.
_TINY = {
    **_INTERPRETED,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def quick_spark() -> list[str]:
    """The same for a JVM of a command, as lines of a walgate.toml."""
    return ["[spark.conf]", *(f'"{key}" = "{value}"' for key, value in TEST_CONF.items())]


def find_java() -> Path | None:
    """Give the Java home that `make setup` chose, else the one of the environment."""
    chosen = STATE_FOLDER / "java"
    if chosen.exists():
        return chosen
    if "JAVA_HOME" in os.environ:
        return Path(os.environ["JAVA_HOME"])
    program = shutil.which("java")
    return None if program is None else Path(program).resolve().parent.parent


def find_store_jars() -> StoreJars | None:
    """The store with the lakes of this run, with the JARs for it; None if they are in folders."""
    store = find_store()
    return None if store is None else StoreJars(store, STATE_FOLDER / "s3-jars")


def make_quick(spark: SparkSession) -> SparkSession:
    """A session of the same JVM that merges tiny tables quickly."""
    session = spark.newSession()
    for key, value in _TINY.items():
        session.conf.set(key, value)
    return session


@contextmanager
def run_spark() -> Iterator[SparkSession]:
    """Run the session of the tests; skip or fail by name where Java or the JARs are missing."""
    java, jars = find_java(), STATE_FOLDER / "jars"
    if java is None or not jars.is_dir():
        report_missing("Java or the Delta JARs", "run `make setup`")
    os.environ["JAVA_HOME"] = str(java)
    session = open_session(
        SparkSettings(master="local[2]", delta_jars=str(jars), driver_memory="2g", conf=TEST_CONF),
        store=find_store_jars(),
    )
    try:
        yield session
    finally:
        session.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Lend the session; take `spark.newSession()` where a test sets configuration or views."""
    with run_spark() as session:
        yield session
