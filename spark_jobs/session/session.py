"""The SparkSession of a process: Delta's extensions, UTC, exact timestamps.

Only programs of this host reach the driver, unless `[spark.conf]` names another address.

When the process ends, its JVM ends soon after, because its pipe from the process closes. Until then
the JVM may still commit. In a folder, the next holder of a table's lock waits for that JVM. In an
object store the lock is a lease, which usually lasts longer than the JVM.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import TimeoutExpired
from urllib.parse import urlsplit

from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from cdc_core.errors import ConfigurationError, MergeError, Retry, WalgateError
from cdc_core.setting_values import SECRET_NAME
from cdc_core.settings import SparkSettings
from spark_jobs.session.store_conf import REQUIRED_CLASSES, StoreJars, configure_store

# PySpark logs the full text of every exception to these, and they write it to standard error.
_REPEATING_LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
_DELTA_PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"

_CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # Spark reads the texts of timestamps as UTC. Delta trusts its checksums only in UTC.
    "spark.sql.session.timeZone": "UTC",
    # INT96, Spark's default, overflows in other readers outside the years 1677 to 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.ansi.enabled": "true",
    # 50 tasks to rebuild the state of a small table cost more than the state itself.
    "spark.databricks.delta.snapshotPartitions": "2",
    # The source of a MERGE is a fold that Spark has computed and kept: every read gives the same.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Merges generate much code. If the code cache is full, the JVM turns its compiler off for good.
    "spark.driver.defaultJavaOptions": "-XX:ReservedCodeCacheSize=512m",
    # A round names each file of the log that it reads. A Spark job to list them would cost more.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    # Every round compiles the same classes, some 40 for each table. By default Spark keeps 100.
    "spark.sql.codegen.cache.maxEntries": "4000",
    # Otherwise PySpark inspects the stack for every expression, which takes most of the time to
    # build a wide query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # Spark frees what a round computed after the garbage collector has found it unreferenced.
    "spark.cleaner.periodicGC.interval": "5min",
    # A MERGE of many rows writes few files. Arrow must be able to rewrite each of them.
    "spark.sql.files.maxRecordsPerFile": "1000000",
    # Executors would log the value at which a task fails. If this level is set, Spark does not load
    # its own configuration of log4j, which logs errors. A worker's log4j2.properties overrides it.
    # Source: Apache Log4j documentation, "Log4j API", log4j2.level.
    "spark.executor.defaultJavaOptions": "-Dlog4j2.level=OFF",
    # What its pages, its event log, and its error texts do not show.
    "spark.redaction.regex": SECRET_NAME.pattern,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# The driver's address: only programs of this host reach it, unless the settings say another one.
_DRIVER_HOST, _BIND_ADDRESS = "spark.driver.host", "spark.driver.bindAddress"
_LOOPBACK = "127.0.0.1"
# If other hosts reach the driver, they need a secret, and the connection is encrypted.
_PROTECTIONS = ("spark.authenticate", "spark.network.crypto.enabled")
# Without this setting, an application takes all cores of a standalone cluster.
_MOST_CORES = "spark.cores.max"
# A local merge writes as many files as it has shuffle partitions. A cluster keeps its own number.
_LOCAL_SHUFFLE_PARTITIONS = "4"
_TASK_DAEMON = "spark_jobs.fast_path.task_daemon"
_DEATH_S = 5.0


def open_session(
    spark: SparkSettings, *, jars_folder: Path | None = None, store: StoreJars | None = None
) -> SparkSession:
    """Open the session of this process, or return the one that is open.

    If the settings say "packages" and `jars_folder` has the Delta JARs, Spark needs no network.
    `store` is the object store of the lake, if it is in one.
    Raises: ConfigurationError if a folder holds no Delta JAR, or not those for the store;
    WalgateError if the master takes no application; OSError.
    """
    conf = _configure(spark, jars_folder, store)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    if spark.master.startswith("local"):
        # Spark fails if the host name does not resolve, although nothing leaves this machine.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
        # Python tasks run this program's code. Another interpreter may lack its packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
    _launch(conf)
    try:
        session = builder.getOrCreate()
    except Py4JJavaError as error:
        reason = error.java_exception.getClass().getSimpleName()
        raise WalgateError(
            f"Spark could not begin an application at its master {spark.master}: {reason}",
            fix="start the master, or correct [spark] master and [spark.conf];"
            " .walgate/spark.log may say more",
            retry=Retry.LATER,
        ) from error
    # Spark would print a failed task's error with a row value in it. It raises the error anyway.
    session.sparkContext.setLogLevel("OFF")
    for name in _REPEATING_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    return session


def _launch(conf: Mapping[str, str]) -> None:
    """Start the JVM of this process, unless it runs already, with all settings but secrets.

    PySpark puts these settings on the JVM's command line, which every user of the machine can read.
    The session gives the secrets to the running JVM.
    """
    public = [(key, value) for key, value in conf.items() if not SECRET_NAME.search(key)]
    launched = SparkConf(loadDefaults=False).setAll(public)
    SparkContext._ensure_initialized(conf=launched)  # noqa: SLF001 - Nothing public does it.


@contextmanager
def reporting_jvm_death(session: SparkSession) -> Iterator[None]:
    """If the session's JVM died inside the block, report that, not the error that it led to.

    Raises: MergeError if the JVM died.
    """
    try:
        yield
    except Exception as exc:
        status = _find_exit(session, exc)
        if status is None:
            raise
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise MergeError(
            f"Spark's JVM {how} during a merge; each table is complete as of its last commit",
            fix="run the merge again: it resumes from there; if the JVM ends again, the machine"
            " lacks memory, or [spark] driver_memory is too small",
            retry=Retry.LATER,
        ) from exc


def _find_exit(session: SparkSession, exc: Exception) -> int | None:
    """The exit status of the session's JVM; None if it runs, or if another program started it."""
    process = getattr(session.sparkContext._gateway, "proc", None)  # noqa: SLF001 - As in find_jvm.
    if process is None:
        return None
    # The connection breaks some moments before the process has an exit status.
    is_cut = isinstance(exc, (Py4JNetworkError, OSError))
    with suppress(TimeoutExpired):
        return int(process.wait(_DEATH_S if is_cut else 0))
    return None


def find_jvm(session: SparkSession) -> int | None:
    """The process id of the session's JVM; None if another program started it."""
    gateway = session.sparkContext._gateway  # noqa: SLF001 - Nothing public names the process.
    process = getattr(gateway, "proc", None)
    return None if process is None else int(process.pid)


def forget_tables(session: SparkSession) -> None:
    """Empty Spark's cache of Delta logs, because a folder has another history than before."""
    jvm = session._jvm  # noqa: SLF001 - Nothing public reaches it.
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def _choose_address(spark: SparkSettings) -> dict[str, str]:
    """Choose the address of the driver.

    Raises: ConfigurationError if executors of other hosts would not find it, or if others could
    pretend to be executors: these get the credentials of the store, and may run code here.
    """
    host = spark.conf.get(_DRIVER_HOST)
    if host is None and _is_on_this_host(spark.master):
        host = _LOOPBACK
    missing = [] if host else [f"{_DRIVER_HOST} for executors of {spark.master}"]
    bound = spark.conf.get(_BIND_ADDRESS, host)
    if host is None or bound is None or not (_is_loopback(host) and _is_loopback(bound)):
        wanted = (name for name in _PROTECTIONS if spark.conf.get(name) != "true")
        missing += [f"{name} = true for a driver that other hosts reach" for name in wanted]
    if missing:
        raise ConfigurationError(
            [f"[spark.conf]: expected {what}" for what in missing],
            fix=f'set "{_DRIVER_HOST}" to an address of this host that the executors can reach, and'
            f" {' and '.join(_PROTECTIONS)} to true, with the secret that Spark's documentation"
            ' asks for ("Spark Security")',
        )
    assert host is not None
    return {_DRIVER_HOST: host, _BIND_ADDRESS: host}


def _require_share(spark: SparkSettings) -> None:
    """Check that an application leaves cores of a cluster to others. Raises: ConfigurationError."""
    if spark.master.startswith("spark://") and _MOST_CORES not in spark.conf:
        raise ConfigurationError(
            [f"[spark.conf]: expected {_MOST_CORES} for {spark.master}, found no limit"],
            fix=f'set "{_MOST_CORES}" to at most half of the cores of the cluster: a merge and a'
            " verification run at the same time, and each would take all cores",
        )


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _is_on_this_host(master: str) -> bool:
    return master.startswith("local") or _is_loopback(urlsplit(master).hostname or "")


def _configure(
    spark: SparkSettings, jars_folder: Path | None, store: StoreJars | None
) -> dict[str, str]:
    """All Spark settings: Walgate's, overridden by the user's."""
    conf = _CONF | {"spark.app.name": "walgate", "spark.master": spark.master}
    conf["spark.driver.memory"] = spark.driver_memory
    if spark.master.startswith("local"):
        conf["spark.sql.shuffle.partitions"] = _LOCAL_SHUFFLE_PARTITIONS
        # Other machines may lack this program.
        conf["spark.python.daemon.module"] = _TASK_DAEMON
    conf |= _choose_address(spark)
    _require_share(spark)
    folder = jars_folder if spark.delta_jars == "packages" else Path(spark.delta_jars)
    if spark.delta_jars == "provided":
        pass
    elif folder is None:
        conf["spark.jars.packages"] = _DELTA_PACKAGE
    else:
        jars = sorted(str(jar) for jar in folder.glob("*.jar"))
        if not any("delta-spark" in jar for jar in jars):
            raise ConfigurationError(
                [f"[spark] delta_jars: {folder} holds no delta-spark JAR"],
                fix="run `make setup`, or name the folder that holds the five io.delta JARs",
            )
        conf["spark.jars"] = ",".join(jars)
    if store is not None:
        named = [conf["spark.jars"]] if "spark.jars" in conf else []
        conf["spark.jars"] = ",".join([*named, *map(str, store.list_jars())])
        conf |= configure_store(store.store)
    for name in REQUIRED_CLASSES:
        if name in conf and spark.conf.get(name, conf[name]) != conf[name]:
            raise ConfigurationError(
                [f"[spark.conf]: expected {name} = {conf[name]}, found {spark.conf[name]}"],
                fix="remove it: with other classes, processes overwrite each other's commits",
            )
    return conf | spark.conf
