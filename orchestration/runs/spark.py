"""Opens the Spark session of a command: with which Java and which Delta JARs.

`make setup` keeps both in `.walgate`, beside the configuration or in the checkout. Spark then takes
nothing from the network. The output of the JVM at its start goes to `.walgate/spark.log`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkRuntimeError

from cdc_core.errors import ConfigurationError, Retry, WalgateError
from cdc_core.lake_storage.object_place import ObjectPlace
from spark_jobs.session.session import open_session
from spark_jobs.session.store_conf import StoreJars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_core.settings import Settings

_CHECKOUT_STATE = Path(__file__).resolve().parents[2] / ".walgate"


def open_spark(settings: Settings, *, is_diverting: bool = True) -> SparkSession:
    """Open the session of this process.

    If `is_diverting`, what this process writes while the JVM starts goes to the file, too.
    Raises: ConfigurationError without Java; WalgateError if the JVM does not start.
    """
    folders = (settings.state_folder, _CHECKOUT_STATE)
    if "JAVA_HOME" not in os.environ:
        java = next((f / "java" for f in folders if (f / "java" / "bin" / "java").exists()), None)
        if java is not None:
            os.environ["JAVA_HOME"] = str(java)
        elif shutil.which("java") is None:
            raise ConfigurationError(
                ["no Java: expected 17 or 21 in JAVA_HOME or on PATH, found none"],
                fix="run `make setup`, or install Java 17 or 21 and set JAVA_HOME",
            )
    jars = next((f / "jars" for f in folders if any((f / "jars").glob("*.jar"))), None)
    # Spark always makes this folder, but it never holds a table of ours.
    conf = {"spark.sql.warehouse.dir": str(settings.state_folder / "warehouse")}
    spark = settings.spark.model_copy(update={"conf": conf | settings.spark.conf})
    log = settings.state_folder / "spark.log"
    try:
        with _divert_output(log) if is_diverting else nullcontext():
            session = open_session(spark, jars_folder=jars, store=_find_store(settings, folders))
    except PySparkRuntimeError as error:
        raise WalgateError(
            f"Spark did not start: {error.getCondition()}",
            fix=f"see {log}; check JAVA_HOME (17 or 21) and [spark] in the configuration",
            retry=Retry.AFTER_FIX,
        ) from error
    return session


def _find_store(settings: Settings, folders: Sequence[Path]) -> StoreJars | None:
    """The store of the lake and the JARs for it; None if the lake is in a folder."""
    root = settings.lake.root
    if not isinstance(root, ObjectPlace):
        return None
    jars = (folder / "s3-jars" for folder in folders)
    return StoreJars(root.store, next((f for f in jars if f.is_dir()), folders[0] / "s3-jars"))


@contextmanager
def _divert_output(file: Path) -> Iterator[None]:
    """Let a JVM that starts in the block inherit a file as its standard output and error."""
    file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    kept = os.dup(1), os.dup(2)
    diverted = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.dup2(diverted, 1)
        os.dup2(diverted, 2)
        yield
    finally:
        for number, saved in zip((1, 2), kept, strict=True):
            os.dup2(saved, number)
            os.close(saved)
        os.close(diverted)
