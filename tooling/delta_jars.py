"""Bring Delta's JARs into `.walgate/jars` once, by Spark's own resolver, with checked hashes.

Spark's resolver is the one that a machine's mirrors and proxies are set up for. Of what it brings
only the files listed in `delta_jars.sha256` are kept: they suffice.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
STATE_FOLDER = HERE.parent / ".walgate"
JARS_FOLDER = STATE_FOLDER / "jars"
COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"
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
    """Let Spark bring the JARs and what they need; give the folder they lie in."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - a second that a finished set-up saves.

    os.environ["JAVA_HOME"] = str(STATE_FOLDER / "java")
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars.packages", COORDINATE)
    builder.config("spark.jars.ivy", str(cache)).getOrCreate().stop()
    return cache / "jars"


def main() -> int:
    """Do nothing where all JARs are there; else bring them, and refuse any that differ."""
    expected = read_expected()
    if not find_wrong(JARS_FOLDER, expected):
        return 0
    print(f"Resolving {COORDINATE} …", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=STATE_FOLDER) as cache:
        resolved, kept = resolve(Path(cache)), Path(cache) / "kept"
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
