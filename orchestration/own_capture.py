"""Capture for as long as a command needs it: the one that runs, or one of the command's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from cdc_core.capture.loop import Bound
from cdc_core.capture.run import run_capture
from cdc_core.errors import SlotInUse, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_briefly
from cdc_core.source.slot import read_slot


@contextmanager
def capturing(settings: Settings, stop: threading.Event) -> Iterator[None]:
    """Have capture run while a block does: the one that holds the slot, or one of our own.

    Raises: WalgateError, what ended our own.
    """
    source = settings.source
    with closing(open_briefly(source, application_name="walgate look")) as connection:
        slot = read_slot(connection, source.slot)
    if slot is not None and slot.active_pid is not None:
        yield
        return
    finished = threading.Event()
    failures: list[WalgateError] = []

    def capture() -> None:
        try:
            run_capture(settings, Bound(finished))
        except SlotInUse:
            pass  # Another came first, and serves as well.
        except WalgateError as error:
            failures.append(error)
            stop.set()

    thread = threading.Thread(target=capture, name="walgate-capture", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        if failures:
            raise failures[0]
