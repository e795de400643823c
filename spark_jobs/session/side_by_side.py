"""Runs jobs side by side, so that one uses the cores while another waits for its driver.

Most Spark jobs of a merge are short, and the cores idle between them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

_Result = TypeVar("_Result")


def run_side_by_side(session: SparkSession, jobs: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run jobs in their order, as many at once as Spark runs tasks; return the results in order.

    Returns when every job has ended. After an error, no further job begins.
    Raises: the error of the first job that failed.
    Source: PySpark documentation, pyspark.util.inheritable_thread_target.
    """
    if len(jobs) == 1:
        return [jobs[0]()]
    threads = max(1, min(len(jobs), session.sparkContext.defaultParallelism))
    inherit = inheritable_thread_target(session)
    with ThreadPoolExecutor(threads, thread_name_prefix="walgate-merge") as pool:
        running = [pool.submit(inherit(job)) for job in jobs]
        try:
            return [one.result() for one in running]
        finally:
            pool.shutdown(cancel_futures=True)
