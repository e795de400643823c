"""Runs jobs side by side, so that one uses the cores while Python works for another.

Most Spark jobs of a merge are short, and the cores idle between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

_Result = TypeVar("_Result")


def run_side_by_side(session: SparkSession, jobs: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run jobs in their order, as many at once as Spark runs tasks; return the results in order.

    Returns when every job has ended. Once a job has failed, no further job begins.
    Raises: the error of a job that failed.
    Source: PySpark documentation, pyspark.util.inheritable_thread_target.
    """
    if len(jobs) == 1:
        return [jobs[0]()]
    threads = max(1, min(len(jobs), session.sparkContext.defaultParallelism))
    inherit = inheritable_thread_target(session)
    with ThreadPoolExecutor(threads, thread_name_prefix="walgate-merge") as pool:
        running = [pool.submit(inherit(job)) for job in jobs]
        try:
            ended, _ = wait(running, return_when=FIRST_EXCEPTION)
            for one in ended:
                one.result()
        finally:
            pool.shutdown(cancel_futures=True)
    return [one.result() for one in running]
