"""Builds the class by which Spark commits to Delta tables in an object store.

Delta's own class for S3 overwrites the commit of another process. `ConditionalLogStore.scala` lets
the store refuse the second writer. The Scala compiler is among the JARs of PySpark.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

import pyspark

from cdc_core.errors import ConfigurationError

LOG_STORE = "walgate.ConditionalLogStore"
_SOURCE = Path(__file__).with_name("ConditionalLogStore.scala")
_NAME = "walgate-log-store"
_COMPILER = "scala.tools.nsc.Main"


def locate_log_store(folder: Path) -> Path:
    """The JAR of the class in a folder of JARs.

    Its name says from which source it was built, and for which versions of Spark and Delta.
    """
    digest = hashlib.sha256(_SOURCE.read_bytes())
    for package in ("pyspark", "delta-spark"):
        digest.update(version(package).encode())
    return folder / f"{_NAME}-{digest.hexdigest()[:16]}.jar"


def build_log_store(folder: Path, *, delta_jars: Path) -> None:
    """Build the JAR in a folder, if it is not there; `delta_jars` is the folder of Delta's JARs.

    Raises: ConfigurationError if the compiler fails.
    """
    target = locate_log_store(folder)
    if target.exists():
        return
    jars = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)) / "jars"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    classes = [*sorted(jars.glob("*.jar")), *sorted(delta_jars.glob("delta-storage-*.jar"))]
    # A compiler that was killed must not leave a half JAR among the others.
    with tempfile.TemporaryDirectory(dir=folder) as building:
        built = Path(building) / target.name
        command = [str(java), "-cp", f"{jars}/*", _COMPILER, "-nowarn", "-d", str(built)]
        command += ["-classpath", os.pathsep.join(map(str, classes)), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not built.exists():
            raise ConfigurationError(
                [f"{_SOURCE.name} was not compiled: {done.stdout}{done.stderr}".strip()],
                fix="check that the versions of PySpark and of Delta's JARs are those of this"
                " release",
            )
        for old in folder.glob(f"{_NAME}-*.jar"):
            old.unlink()
        built.rename(target)
