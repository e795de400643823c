"""Bring Delta's JARs into `.walgate/jars` once, by Spark's own resolver, with checked hashes.

Spark's resolver is the one that a machine's mirrors and proxies are set up for. Of what it brings
only the files listed in `delta_jars.sha256` are kept: they suffice.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STATE_FOLDER = HERE.parent / ".walgate"
JARS_FOLDER = STATE_FOLDER / "jars"
COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"
# What Delta's JARs ask for besides one another is in Spark already, or not used by it.
NEEDLESS_GROUPS = (
    "org.*:*",
    "com.*:*",
    "commons-*:*",
    "javax.*:*",
    "io.airlift:*",
    "io.unitycatalog:*",
)
GROUP_PREFIX = "io.delta_"  # The resolver puts the group before each file's name.


def read_expected() -> dict[str, str]:
    """Give the SHA-256 of each JAR by file name."""
    lines = (HERE / "delta_jars.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def find_wrong(folder: Path, expected: dict[str, str]) -> list[str]:
    """Name the JARs that are missing or differ from what is expected."""
    return [
        name
        for name, digest in expected.items()
        if not (folder / name).is_file()
        or hashlib.sha256((folder / name).read_bytes()).hexdigest() != digest
    ]


def resolve(cache: Path) -> Path:
    """Start Spark once, so that it brings the JARs; give the folder they lie in.

    Raises: CalledProcessError; what Spark said is in its output.
    """
    settings = ["--packages", COORDINATE, "--exclude-packages", ",".join(NEEDLESS_GROUPS)]
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
    return cache / "jars"


def main() -> int:
    """Do nothing where all JARs are there; else bring them, and refuse any that differ."""
    expected = read_expected()
    if not find_wrong(JARS_FOLDER, expected):
        return 0
    print(f"Resolving {COORDINATE} …", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=STATE_FOLDER) as cache:
        try:
            resolved = resolve(Path(cache))
        except subprocess.CalledProcessError as error:
            print(error.output, "Spark could not bring the Delta JARs.", sep="\n", file=sys.stderr)
            return 1
        kept = Path(cache) / "kept"
        kept.mkdir()
        for name in expected:
            shutil.copy(resolved / f"{GROUP_PREFIX}{name}", kept / name)
        if wrong := find_wrong(kept, expected):
            print(f"These JARs differ from tooling/delta_jars.sha256: {wrong}", file=sys.stderr)
            return 1
        shutil.rmtree(JARS_FOLDER, ignore_errors=True)
        kept.rename(JARS_FOLDER)
    return 0


if __name__ == "__main__":
    sys.exit(main())
