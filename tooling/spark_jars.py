"""Bring JARs that Spark lacks into `.walgate` once, by Spark's own resolver, with checked hashes.

Spark's resolver is the one that a machine's mirrors and proxies are set up for. The program
keeps only the files that are listed beside it: they suffice. Without an argument it brings the JARs
of Delta, and with `s3` those that a lake in an object store needs besides.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from spark_jobs.session.store_jar import build_store_jar

HERE = Path(__file__).parent
STATE_FOLDER = HERE.parent / ".walgate"


@dataclass(frozen=True)
class JarSet:
    """JARs that come together: what is asked for, and what is not wanted of what these ask for."""

    coordinates: tuple[str, ...]
    needless: tuple[str, ...]
    hashes: Path
    folder: Path

    def read_expected(self) -> dict[str, str]:
        """Give the SHA-256 of each JAR by file name."""
        lines = self.hashes.read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}


DELTA = JarSet(
    ("io.delta:delta-spark_4.2_2.13:4.4.0",),
    # What Delta's JARs ask for besides one another is in Spark already, or not used by it.
    ("org.*:*", "com.*:*", "commons-*:*", "javax.*:*", "io.airlift:*", "io.unitycatalog:*"),
    HERE / "delta_jars.sha256",
    STATE_FOLDER / "jars",
)
_SDK = "software.amazon.awssdk"
S3 = JarSet(
    (
        "org.apache.hadoop:hadoop-aws:3.5.0",
        *(f"{_SDK}:{name}:2.57.8" for name in ("s3", "s3-transfer-manager", "sts")),
        *(f"{_SDK}:{name}:2.57.8" for name in ("apache-client", "netty-nio-client")),
        "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
    ),
    # The bundle has the clients of all services: 690 MB. Spark has the rest already.
    (f"{_SDK}:bundle", "io.netty:*", "org.slf4j:*", "commons-*:*", "com.github.*:*"),
    HERE / "s3_jars.sha256",
    STATE_FOLDER / "s3-jars",
)
SETS = {"delta": DELTA, "s3": S3}


def find_wrong(folder: Path, expected: dict[str, str]) -> list[str]:
    """Name the JARs that are missing or differ from what is expected."""
    return [
        name
        for name, digest in expected.items()
        if not (folder / name).is_file()
        or hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest
    ]


def resolve(jars: JarSet, cache: Path) -> dict[str, Path]:
    """Start Spark once, so that it brings the JARs; give them by their names in a repository.

    Raises: CalledProcessError; what Spark said is in its output.
    """
    settings = ["--packages", ",".join(jars.coordinates)]
    settings += ["--exclude-packages", ",".join(jars.needless)]
    settings += ["--conf", f"spark.jars.ivy={cache}", "--conf", "spark.ui.enabled=false"]
    environment = os.environ | {
        "JAVA_HOME": str(STATE_FOLDER / "java"),
        "PYSPARK_SUBMIT_ARGS": shlex.join([*settings, "pyspark-shell"]),
    }
    start = "from pyspark.sql import SparkSession; SparkSession.builder.getOrCreate().stop()"
    subprocess.run(
        [sys.executable, "-c", start],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # The resolver puts the group and an underscore before each name.
    return {jar.name.partition("_")[2]: jar for jar in (cache / "jars").glob("*.jar")}


def bring(jars: JarSet) -> int:
    """Do nothing where all JARs are there; else bring them, and refuse any that differ."""
    expected = jars.read_expected()
    if not find_wrong(jars.folder, expected):
        return 0
    print(f"Resolving {jars.coordinates[0]} …", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=STATE_FOLDER) as cache:
        try:
            resolved = resolve(jars, Path(cache))
        except subprocess.CalledProcessError as error:
            print(error.output, "Spark could not bring these JARs.", sep="\n", file=sys.stderr)
            return 1
        kept = Path(cache) / "kept"
        kept.mkdir()
        for name in expected:
            shutil.copy(resolved[name], kept / name)
        if wrong := find_wrong(kept, expected):
            print(f"These JARs differ from {jars.hashes.name}: {wrong}", file=sys.stderr)
            return 1
        shutil.rmtree(jars.folder, ignore_errors=True)
        kept.rename(jars.folder)
    return 0


def main() -> int:
    """Bring the JARs that the argument names, and build what Spark commits with to a store."""
    name = sys.argv[1] if len(sys.argv) > 1 else "delta"
    failed = bring(SETS[name])
    if name == "s3" and not failed:
        os.environ["JAVA_HOME"] = str(STATE_FOLDER / "java")
        build_store_jar(S3.folder, delta_jars=DELTA.folder)
    return failed


if __name__ == "__main__":
    sys.exit(main())
