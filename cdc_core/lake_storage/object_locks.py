"""Locks of a lake that is in an object store: leases.

A lease is an object in `locks/` of the lake that names its holder. A thread of the holder writes it
again every few seconds. Each write is conditional: it succeeds only if the object is as the writer
has seen it last. If the holder dies, nobody renews the lease, and after its life the next process
takes it over.

A holder that was paused may have lost its lease. It goes on all the same. If another process has
committed in between, Delta refuses the holder's commit; otherwise the commit succeeds. So before a
process removes the files of an abandoned attempt, it commits the version of that attempt itself
(`abandoned_attempts`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cdc_core.errors import MergeError
from cdc_core.lake_storage.lock_wait import wait_for_lock
from cdc_core.lake_storage.object_place import ObjectPlace, Refused, TaggedText

# Seconds. A lease that nobody renewed for its life is free. Two renewals in a row may fail.
_LIFE_S = 30.0
_RENEW_S = 8.0
_POLL_S = 0.25
_FREE = "{}"

_logger = logging.getLogger("walgate.lake")


@contextmanager
def hold_object_lock(place: ObjectPlace, name: str) -> Iterator[None]:
    """Hold the lease of a name while a block runs.

    Raises: MergeError if another process keeps the lease; OSError.
    """
    lease = _Lease(place)
    try:
        wait_for_lock(lease.try_take, name, poll_s=_POLL_S)
    except MergeError:
        if lease.failure is not None:
            raise lease.failure from None
        raise
    lease.begin_renewals()
    try:
        yield
    finally:
        lease.release()


class _Lease:
    """The lease of one holder."""

    def __init__(self, place: ObjectPlace) -> None:
        self._place = place
        self._identifier = str(uuid.uuid4())
        self._holder = {
            "holder": self._identifier,
            "host": socket.gethostname(),
            "process": os.getpid(),
        }
        self.failure: OSError | None = None
        self._renewals = 0
        self._tag = self._text = ""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="walgate-lock", daemon=True)

    def try_take(self) -> bool:
        """Take the lease if it is free; return whether this object holds it.

        If the store fails, `failure` says why.
        """
        self.failure = None
        try:
            found = self._place.read_tagged()
            if found is None or self._is_free(found):
                return self._write(self._describe(), None if found is None else found.tag)
        except OSError as error:
            self.failure = error
            return False
        return self._adopt(found)

    def begin_renewals(self) -> None:
        self._thread.start()

    def release(self) -> None:
        """Free the lease, if this object still holds it. If the store fails, the lease expires."""
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):
            # If the reply to the last renewal was lost, our tag is old. The first try is refused,
            # and reads the new tag.
            for _ in range(2):
                if self._write(_FREE, self._tag) and self._text == _FREE:
                    return

    def _renew(self) -> None:
        while not self._is_over.wait(_RENEW_S):
            # While the store is down, the lease gets older, and somebody may take it over.
            with suppress(OSError):
                if not self._write(self._describe(), self._tag):
                    fields = {"lock": str(self._place)}
                    _logger.warning("another process took over a lock", extra={"fields": fields})
                    return

    def _describe(self) -> str:
        """The text of the next write. Each differs: equal texts would get equal tags."""
        self._renewals += 1
        return json.dumps({**self._holder, "renewals": self._renewals})

    def _write(self, text: str, tag: str | None) -> bool:
        """Write the lease if it is as the tag says; return whether it is ours afterwards."""
        try:
            self._tag, self._text = self._place.write_text_if(text, tag), text
        except Refused:
            found = self._place.read_tagged()
            return found is not None and self._adopt(found)
        return True

    def _adopt(self, found: TaggedText) -> bool:
        """Return whether a lease is ours; if so, remember its tag.

        A write may have succeeded although its reply was lost.
        """
        is_ours = self._identifier in found.text
        if is_ours:
            self._tag, self._text = found.tag, found.text
        return is_ours

    def _is_free(self, found: TaggedText) -> bool:
        """Whether a lease has no holder, or one that has not renewed it for its life.

        The store's clock gives both times.
        """
        if found.text == _FREE:
            return True
        age_us = self._place.parent.read_clock_us() - found.modified_us
        return age_us > _LIFE_S * 1_000_000
