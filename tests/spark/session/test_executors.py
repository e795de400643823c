"""What happens to jobs that wait for executors of a cluster."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.fix_cluster import CLUSTER_CONF
from tests.fix_spark import TEST_CONF
from tests.walgate_command import REPOSITORY

# Runs a job on a cluster, and says how it ended.
PROGRAM = """
import json, sys
from cdc_core.errors import WalgateError
from cdc_core.settings import SparkSettings
from spark_jobs.session.executors import await_executor, requiring_executors
from spark_jobs.session.session import open_session
from tests.fix_spark import STATE_FOLDER
master, conf = sys.argv[1], json.loads(sys.argv[2])
session = open_session(
    SparkSettings(master=master, driver_memory="1g", conf=conf), jars_folder=STATE_FOLDER / "jars"
)
try:
    with requiring_executors(session, patience_s=float(sys.argv[3])):
        await_executor(session)
    print("it ran")
except WalgateError as error:
    print(error.message)
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("more", "patience_s", "said"),
    [({}, 120.0, "it ran"), ({"spark.executor.memory": "9g"}, 2.0, "gave no executor for 2 s")],
    ids=["executors", "none"],
)
def test_a_job_without_an_executor_ends(
    master: str, more: dict[str, str], patience_s: float, said: str
) -> None:
    conf = json.dumps(TEST_CONF | CLUSTER_CONF | more)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, master, conf, str(patience_s)],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
