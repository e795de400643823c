"""Secrets among the settings of Spark reach Spark, and no command line."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.fix_spark import STATE_FOLDER, TEST_CONF, find_java
from tests.walgate_command import REPOSITORY

CANARY = "c4n4ry-of-a-setting"
# Prints the command line of the session's JVM, and the setting as the JVM knows it.
PROGRAM = """
import json, sys
from pathlib import Path
from cdc_core.settings import SparkSettings
from spark_jobs.session.session import find_jvm, open_session

secret = {"spark.hadoop.a.secret.key": sys.stdin.read()}
settings = SparkSettings(conf=json.loads(sys.argv[1]) | secret)
session = open_session(settings, jars_folder=Path(sys.argv[2]))
line = Path(f"/proc/{find_jvm(session)}/cmdline").read_bytes().decode()
known = session.sparkContext._jsc.hadoopConfiguration().get("a.secret.key")
print(json.dumps([line, known]))
"""


def test_a_secret_reaches_the_jvm_and_not_its_command_line() -> None:
    java = find_java()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(TEST_CONF), str(STATE_FOLDER / "jars")],
        input=CANARY,
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={"PATH": "/usr/bin:/bin", **({} if java is None else {"JAVA_HOME": str(java)})},
    )
    line, known = json.loads(done.stdout.splitlines()[-1])
    assert "org.apache.spark.deploy.SparkSubmit" in line
    assert known == CANARY
    assert CANARY not in line
