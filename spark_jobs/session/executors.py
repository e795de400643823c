"""Ends the jobs of a cluster that gives no executor.

Spark waits for executors without end. While it waits, a merge would hold its locks, and a
verification would hold a snapshot of the source.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from cdc_core.errors import Retry, WalgateError

NO_EXECUTOR_FIX = (
    "start workers, or free cores and memory for this application: the page of the master shows"
    " them"
)
# Seconds. Executors start within some seconds, if the cluster has cores and memory for them.
_PATIENCE_S = 180.0
_POLL_S = 1.0


@contextmanager
def requiring_executors(
    session: SparkSession, *, patience_s: float = _PATIENCE_S
) -> Iterator[None]:
    """Run a block, and cancel its jobs if they wait too long while there is no executor.

    Nothing is watched on a local master, whose executor is the driver.
    Raises: WalgateError if the block failed after its jobs were cancelled.
    """
    if _is_local(session):
        yield
        return
    watch = _Watch(session, patience_s)
    watch.start()
    try:
        yield
    except Exception as error:
        if not watch.has_cancelled:
            raise
        raise WalgateError(
            f"the cluster {session.sparkContext.master} gave no executor for {patience_s:g} s",
            fix=NO_EXECUTOR_FIX,
            retry=Retry.LATER,
        ) from error
    finally:
        watch.end()


def await_executor(session: SparkSession) -> None:
    """Run a task, so that at least one executor of a cluster has started."""
    if not _is_local(session):
        session.range(2).collect()


def _is_local(session: SparkSession) -> bool:
    return str(session.sparkContext.master).startswith("local")


class _Watch:
    """Looks in a thread whether jobs run without an executor."""

    def __init__(self, session: SparkSession, patience_s: float) -> None:
        self._context = session.sparkContext
        self._patience_s = patience_s
        self.has_cancelled = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="walgate-executors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        waiting_since: float | None = None
        while not self._is_over.wait(_POLL_S):
            try:
                if not self._is_waiting():
                    waiting_since = None
                    continue
                waiting_since = waiting_since or time.monotonic()
                if time.monotonic() - waiting_since > self._patience_s:
                    self.has_cancelled = True
                    self._context.cancelAllJobs()
            except (Py4JError, OSError):
                return  # The JVM has ended, and so have its jobs.

    def _is_waiting(self) -> bool:
        tracker = self._context._jsc.sc().statusTracker()  # noqa: SLF001 - Nothing public has it.
        # The driver is one of those that it lists.
        has_executors = len(tracker.getExecutorInfos()) > 1
        return not has_executors and len(tracker.getActiveJobIds()) > 0
