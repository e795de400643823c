"""How a run hosts a loop: on a thread of its own, signed with its process, drained when cancelled.

Dagster interrupts the main thread at any bytecode; so the main thread only waits. What stops the
loop by itself loses nothing, whatever the moment.
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
from orchestration.failures import explain_failure
from orchestration.log_lines import logging_to_standard_error

# Dagster shows no tag of this prefix: it would fill the list of runs.
WORKER_TAG = ".dagster/walgate_worker"
# The time of its last sign of life. A person reads it; signs_of_life.py notices only a change.
ALIVE_TAG = ".dagster/walgate_alive"
RETRY_TAG = "walgate/retry"
MAX_RUNTIME_TAG = "dagster/max_runtime"
# Longer than a commit or a round takes, shorter than the instance waits for a cancelled run.
DRAIN_S = 90.0
_POLL_S = 0.25
# How often a run looks at its own record: a cancelled one whose code server was killed is never
# interrupted, for only that server knew the process.
_LOOK_S = 3.0
# How often it writes a sign of life there; each is a write to the instance.
_SIGN_S = 60.0

_logger = logging.getLogger("walgate.run")


def host_loop(
    context: dg.OpExecutionContext,
    work: Callable[[threading.Event], None],
    *,
    most_s: float | None,
) -> None:
    """Run a loop to its end; an interrupt sets its event, waits for its drain and goes on.

    `most_s` is how long the loop means to run; a worker that outlives it by far is ended by the
    instance. Raises: Failure, of which nothing but our own text is told.
    """
    tags = {WORKER_TAG: format_worker(os.getpid()), ALIVE_TAG: _format_now()}
    if most_s is not None:
        tags[MAX_RUNTIME_TAG] = str(round(most_s + 3 * DRAIN_S))
    context.instance.add_run_tags(context.run_id, tags)
    stop = threading.Event()
    running: Future[None] = Future()
    # A daemon: a loop that cannot drain does not keep its process, and with it the slot, for ever.
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
    """Name a process so that no other is ever taken for it: host, id, boot and start."""
    return f"{socket.gethostname()} {process} {read_boot()} {read_start(process)}"


def is_worker_gone(worker: str) -> bool:
    """Whether the process that signed a run has ended; one of another host is taken to live."""
    return is_of_this_host(worker) and format_worker(int(worker.split(" ")[1])) != worker


def is_of_this_host(worker: str) -> bool:
    """Whether the process that signed a run can be looked for here."""
    return worker.split(" ", maxsplit=1)[0] == socket.gethostname()


def _await(context: dg.OpExecutionContext, running: Future[None]) -> None:
    """Wait for the loop's end. Raises: DagsterExecutionInterruptedError if it is called off."""
    looked_at = signed_at = time.monotonic()
    # Not Thread.join: once interrupted, it takes the thread for ended (python/cpython#90882).
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
    """Leave a sign of life on the run's record; where that fails, the next one will do."""
    with suppress(Exception):
        context.instance.add_run_tags(context.run_id, {ALIVE_TAG: _format_now()})


def _format_now() -> str:
    return datetime.now(UTC).isoformat()


def _is_called_off(context: dg.OpExecutionContext) -> bool:
    """Whether somebody cancelled the run or gave it up, as its record tells."""
    try:
        run = context.instance.get_run_by_id(context.run_id)
    except Exception:  # noqa: BLE001 - A record that cannot be read now calls nothing off.
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
    """Say what happened as the command line would; leave on the run when to try again."""
    retry = error.retry if isinstance(error, WalgateError) else Retry.LATER
    context.instance.add_run_tags(context.run_id, {RETRY_TAG: retry.name})
    lines = explain_failure(error).lines
    return dg.Failure("\n".join(lines), metadata={"retry": retry.name.lower()}, allow_retries=False)
