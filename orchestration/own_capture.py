"""Capture for as long as a command needs it: the one that runs, or one of the command's own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from cdc_core.capture.loop import Bound
from cdc_core.errors import Retry, SlotInUse, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_briefly
from cdc_core.source.slot import read_slot
from orchestration.capture import capture

# A capture that ends has the slot a moment longer; between two runs of Dagster's it is free.
_ENDING_S = 1.0
_BETWEEN_RUNS_S = 60.0
_LOOK_S = 0.2
_LOOK_AGAIN_S = 5.0

_logger = logging.getLogger("walgate.capture")


@contextmanager
def capturing(settings: Settings, stop: threading.Event) -> Iterator[None]:
    """Make sure that a capture runs while a block does: the one that holds the slot, or our own.

    If an error ends our own capture, and there was no other one or no wait can cure it, `stop` is
    set, and the error is raised at the end of the block. Raises: WalgateError.
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
                capture(settings, Bound(finished))
                finished.wait(_LOOK_S)  # The server shuts down.
            except SlotInUse:
                is_alone = False  # Another came first, and serves as well.
            except WalgateError as error:
                # Such as a lost slot, from which no capture can go on.
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

    After a first moment it must have been free for as long as it is between two runs.
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
    with closing(open_briefly(source, application_name="walgate look")) as connection:
        slot = read_slot(connection, source.slot)
    return slot is not None and slot.active_pid is not None
