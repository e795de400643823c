"""Provides capture while a command needs it: the one that runs, or one of the command's own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from cdc_core.capture.loop import RunLimit
from cdc_core.errors import Retry, SlotInUse, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_quick_query
from cdc_core.source.slot import read_slot
from orchestration.capture.capture import capture

# A capture that ends holds the slot for a moment longer. Between two runs of Dagster, the slot is
# free for a while.
_ENDING_S = 1.0
_BETWEEN_RUNS_S = 60.0
_LOOK_S = 0.2
_LOOK_AGAIN_S = 5.0

_logger = logging.getLogger("walgate.capture")


@contextmanager
def ensuring_capture(settings: Settings, stop: threading.Event) -> Iterator[None]:
    """Provide capture while the block runs: the one that holds the slot, or our own.

    An error of our own capture sets `stop` if no other capture has held the slot, or if waiting
    cannot cure the error. The end of the block then raises the error. Raises: WalgateError.
    """
    finished = threading.Event()
    failures: list[WalgateError] = []
    is_alone = not _is_held(settings)

    def run() -> None:
        nonlocal is_alone
        may_be_ending = True
        while not finished.is_set():
            if not is_alone:
                patience_s = 0.0 if may_be_ending else _BETWEEN_RUNS_S
                if not _wait_until_free(settings, finished, patience_s=patience_s):
                    return
            try:
                capture(settings, RunLimit(finished))
                finished.wait(_LOOK_S)  # If not finished, the server shuts down.
            except SlotInUse:
                is_alone = False  # Another capture came first; it serves as well.
            except WalgateError as error:
                # For example a lost slot, from which no capture can go on.
                if is_alone or error.retry is Retry.AFTER_FIX:
                    failures.append(error)
                    stop.set()
                    return
                # The capture that held the slot before may come back.
                may_be_ending = False
                fields = {"reason": error.message}
                _logger.warning("no capture runs", extra={"fields": fields})

    thread = threading.Thread(target=run, name="walgate-capture", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        if failures:
            raise failures[0]


def _wait_until_free(settings: Settings, finished: threading.Event, *, patience_s: float) -> bool:
    """Wait until the slot has been free for `patience_s`; False if `finished` is set before.

    After `_ENDING_S` it must have been free for `_BETWEEN_RUNS_S`.
    """
    began = time.monotonic()
    free_since: float | None = None
    while True:
        now = time.monotonic()
        is_ending = now - began < _ENDING_S
        wanted_s = patience_s if is_ending else _BETWEEN_RUNS_S
        try:
            free_since = None if _is_held(settings) else free_since or now
        except WalgateError:
            free_since = None
        if free_since is not None and now - free_since >= wanted_s:
            return True
        if finished.wait(_LOOK_S if is_ending else _LOOK_AGAIN_S):
            return False


def _is_held(settings: Settings) -> bool:
    source = settings.source
    with closing(open_for_quick_query(source, application_name="walgate look")) as connection:
        slot = read_slot(connection, source.slot)
    return slot is not None and slot.active_pid is not None
