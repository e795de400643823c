"""Builds the classes by which Spark writes to an object store.

`ConditionalLogStore.scala` lets the store refuse the second of two commits; Delta's own class
overwrites the first one. `DirectCommitProtocol.scala` writes data files without renames. The Scala
compiler is among the JARs of PySpark.
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
COMMIT_PROTOCOL = "walgate.DirectCommitProtocol"
_SOURCES = sorted(Path(__file__).parent.glob("*.scala"))
_NAME = "walgate-store"
_COMPILER = "scala.tools.nsc.Main"


def locate_store_jar(folder: Path) -> Path:
    """The JAR of the classes in a folder of JARs.

    Its name says from which sources it was built, and for which versions of Spark and Delta.
    """
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in _SOURCES))
    for package in ("pyspark", "delta-spark"):
        digest.update(version(package).encode())
    return folder / f"{_NAME}-{digest.hexdigest()[:16]}.jar"


def build_store_jar(folder: Path, *, delta_jars: Path) -> None:
    """Build the JAR in a folder, if it is not there; `delta_jars` is the folder of Delta's JARs.

    Raises: ConfigurationError if the compiler fails.
    """
    target = locate_store_jar(folder)
    if target.exists():
        return
    jars = Path(os.environ.get("SPARK_HOME", Path(pyspark.__file__).parent)) / "jars"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java" if "JAVA_HOME" in os.environ else "java"
    classes = [*sorted(jars.glob("*.jar")), *sorted(delta_jars.glob("delta-storage-*.jar"))]
    # A compiler that was killed must not leave a half JAR among the others.
    with tempfile.TemporaryDirectory(dir=folder) as building:
        built = Path(building) / target.name
        command = [str(java), "-cp", f"{jars}/*", _COMPILER, "-nowarn", "-d", str(built)]
        command += ["-classpath", os.pathsep.join(map(str, classes)), *map(str, _SOURCES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode or not built.exists():
            raise ConfigurationError(
                [f"Spark's classes were not compiled: {done.stdout}{done.stderr}".strip()],
                fix="check that the versions of PySpark and of Delta's JARs are those of this"
                " release",
            )
        for old in folder.glob(f"{_NAME}-*.jar"):
            old.unlink()
        built.rename(target)
