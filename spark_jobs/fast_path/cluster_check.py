"""Tries a cluster as merges use it: whether executors come, and whether they have this code."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from spark_jobs.fast_path.same_code import OtherCode, run_on_executors
from spark_jobs.session.executors import NO_EXECUTOR_FIX
from spark_jobs.session.failures import explain

# Seconds. Executors start within some seconds, if the cluster has cores and memory for them.
_PATIENCE_S = 90.0
_TASKS = 4


@dataclass(frozen=True, slots=True)
class ClusterProblem:
    """What a cluster does not do. Merges go on, but slowly, if it `is_only_slow`."""

    what: str
    expected: str
    found: str
    fix: str
    is_only_slow: bool = False


def find_cluster_problem(session: SparkSession) -> ClusterProblem | None:
    """Run some tasks of this program on the executors of a session; None if they do it."""
    with ThreadPoolExecutor(1) as threads:
        trying = threads.submit(run_on_executors, session, range(_TASKS), _do_nothing)
        try:
            trying.result(_PATIENCE_S)
        except StillWaiting:
            session.sparkContext.cancelAllJobs()
            return ClusterProblem(
                "no executor of the cluster takes a task",
                f"a task to end within {_PATIENCE_S:g} s",
                "it still waits",
                NO_EXECUTOR_FIX,
            )
        except OtherCode:
            return ClusterProblem(
                "executors lack code of this program, or have another version of it",
                "the same version of walgate where executors run",
                "another digest of the code, or no code",
                "install this version of walgate in the Python that PYSPARK_PYTHON names; until"
                " then, Spark merges in its own way, which is slower",
                is_only_slow=True,
            )
        except Py4JJavaError as error:
            return ClusterProblem(
                "the executors of the cluster run no Python",
                "a task of Python to end",
                explain(error),
                "install Python on the workers, where PYSPARK_PYTHON names it; their logs say more",
            )
    return None


def _do_nothing(_: int) -> None:
    """Show that a task began."""
