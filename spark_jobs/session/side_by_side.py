"""Runs jobs side by side, so that one uses the cores while Python works for another.

Most Spark jobs of a merge are short, and the cores idle between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

from pyspark.sql import SparkSession
from pyspark.util import inheritable_thread_target

_Result = TypeVar("_Result")

# Each merge of a first copy may hold 256 MB of keys in this process. So the number of merges is
# limited, whatever the number of cores.
_MAX_AT_ONCE = 4


def run_side_by_side(session: SparkSession, jobs: Sequence[Callable[[], _Result]]) -> list[_Result]:
    """Run jobs in their order, up to as many at once as Spark runs tasks; results in their order.

    Returns when every job that began has ended. Once a job has failed, no further job begins.
    Raises: the first error of a job.
    Source: PySpark documentation, pyspark.util.inheritable_thread_target.
    """
    if len(jobs) == 1:
        return [jobs[0]()]
    waiting = deque(enumerate(jobs))
    results: dict[int, _Result] = {}
    errors: list[BaseException] = []

    def work() -> None:
        while waiting and not errors:
            try:
                number, job = waiting.popleft()
            except IndexError:  # Another thread took the last job.
                return
            try:
                results[number] = job()
            except BaseException as error:  # noqa: BLE001 - The caller gets it.
                errors.append(error)

    count = min(len(jobs), session.sparkContext.defaultParallelism, _MAX_AT_ONCE)
    # Each thread has a copy of the properties. The threads are daemons, so that a cancelled run can
    # end while a job still runs.
    threads = [
        Thread(target=inheritable_thread_target(session)(work), name=f"merge-{i}", daemon=True)
        for i in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(jobs))]
