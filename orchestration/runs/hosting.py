"""Hosts a loop in a run: on a thread of its own, signed with its process, drained when cancelled.

Dagster interrupts the main thread at any bytecode, so the main thread only waits. The loop stops by
itself when its event is set, and loses nothing at any moment.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime

import dagster as dg

from cdc_core.errors import Retry, WalgateError
from cdc_core.process_start import read_boot, read_start
from orchestration.runs.failures import explain_failure
from orchestration.runs.log_lines import logging_to_standard_error

# Dagster does not show tags of this prefix. Otherwise this tag would fill the list of runs.
WORKER_TAG = ".dagster/walgate_worker"
# The time of a run's last sign of life. A person reads it; signs_of_life.py only sees it change.
ALIVE_TAG = ".dagster/walgate_alive"
RETRY_TAG = "walgate/retry"
MAX_RUNTIME_TAG = "dagster/max_runtime"
# Longer than a commit or a round takes, shorter than the instance waits for a cancelled run.
DRAIN_S = 90.0
_POLL_S = 0.25
# How often a run reads its own record. If the code server of a cancelled run was killed, no process
# interrupts the run, because only that server knew its process.
_LOOK_S = 3.0
# How often a run writes a sign of life to its record; each is a write to the instance.
_SIGN_S = 60.0

_logger = logging.getLogger("walgate.run")


def host_loop(
    context: dg.OpExecutionContext,
    work: Callable[[threading.Event], None],
    *,
    most_s: float | None,
) -> None:
    """Run a loop to its end; at an interrupt, set its event, wait for its drain and raise again.

    `most_s` is how long the loop intends to run: the instance ends a worker that runs far longer.
    Raises: Failure with the text of `explain_failure`; DagsterExecutionInterruptedError.
    """
    tags = {WORKER_TAG: format_worker(os.getpid()), ALIVE_TAG: _format_now()}
    if most_s is not None:
        tags[MAX_RUNTIME_TAG] = str(round(most_s + 3 * DRAIN_S))
    context.instance.add_run_tags(context.run_id, tags)
    stop = threading.Event()
    running: Future[None] = Future()
    # A daemon thread: a loop that cannot drain must not keep its process, and so the slot, alive.
    loop = threading.Thread(
        target=_run, args=(work, stop, running), name="walgate-loop", daemon=True
    )
    try:
        loop.start()
        _await(context, running)
    except dg.DagsterExecutionInterruptedError:
        stop.set()
        wait([running], timeout=DRAIN_S)
        raise
    error = running.exception()
    if error is not None:
        raise _explain(context, error) from None


def format_worker(process: int) -> str:
    """Name a process so that no other process has its name: host, id, boot and start."""
    return f"{socket.gethostname()} {process} {read_boot()} {read_start(process)}"


def is_worker_gone(worker: str) -> bool:
    """Whether the process that signed a run has ended; False for a process of another host."""
    return is_of_this_host(worker) and format_worker(int(worker.split(" ")[1])) != worker


def is_of_this_host(worker: str) -> bool:
    """Whether the process that signed a run is or was on this host."""
    return worker.split(" ", maxsplit=1)[0] == socket.gethostname()


def _await(context: dg.OpExecutionContext, running: Future[None]) -> None:
    """Wait for the loop's end. Raises: DagsterExecutionInterruptedError if it is called off."""
    looked_at = signed_at = time.monotonic()
    # Not Thread.join: after an interrupt it treats the thread as ended (python/cpython#90882).
    while not wait([running], timeout=_POLL_S).done:
        if time.monotonic() - looked_at < _LOOK_S:
            continue
        if _is_called_off(context):
            raise dg.DagsterExecutionInterruptedError
        looked_at = time.monotonic()
        if looked_at - signed_at >= _SIGN_S:
            _sign_again(context)
            signed_at = looked_at


def _sign_again(context: dg.OpExecutionContext) -> None:
    """Write a sign of life to the run's record; if that fails, the next one is enough."""
    with suppress(Exception):
        context.instance.add_run_tags(context.run_id, {ALIVE_TAG: _format_now()})


def _format_now() -> str:
    return datetime.now(UTC).isoformat()


def _is_called_off(context: dg.OpExecutionContext) -> bool:
    """Whether the run's record is gone, or says that the run is canceling or over."""
    try:
        run = context.instance.get_run_by_id(context.run_id)
    except Exception:  # noqa: BLE001 - A record that cannot be read now calls no run off.
        return False
    return run is None or run.is_finished or run.status is dg.DagsterRunStatus.CANCELING


def _run(
    work: Callable[[threading.Event], None], stop: threading.Event, running: Future[None]
) -> None:
    with logging_to_standard_error():
        try:
            work(stop)
        except BaseException as error:
            _logger.exception("loop failed")
            running.set_exception(error)
        else:
            running.set_result(None)


def _explain(context: dg.OpExecutionContext, error: BaseException) -> dg.Failure:
    """Explain an error as the command line would; tag the run with when to try again."""
    retry = error.retry if isinstance(error, WalgateError) else Retry.LATER
    context.instance.add_run_tags(context.run_id, {RETRY_TAG: retry.name})
    lines = explain_failure(error).lines
    return dg.Failure("\n".join(lines), metadata={"retry": retry.name.lower()}, allow_retries=False)
