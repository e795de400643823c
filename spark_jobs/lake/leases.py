"""Leases of readers: a file in the lake that says at which bound a process reads.

As long as a reader's lease lives, maintenance keeps the cut that it reads at, and the log above. A
lease lives for an hour after its holder wrote it last. The holder writes it again every few
minutes, so that the lease of a killed process ends by itself. A reader that cannot write to the
lake reads without a lease; then the time of grace protects what it reads.
"""

from __future__ import annotations

import json
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from cdc_core.lake_layout import LEASES, name_lease
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import UNIX_START, Lsn
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import find_cut

LIFE = timedelta(hours=1)
_RENEW_S = 300.0


class Lease:
    """A lease of this process. It ends by `end`, or when nothing refers to it any more."""

    def __init__(self, lake: Lake, bound: Bound) -> None:
        """Write the lease, and begin to renew it. Raises nothing."""
        cut = find_cut(lake, bound)
        # A reader above the newest cut keeps the cut that it reads, and the log above that.
        self.end = weakref.finalize(self, _Renewal(lake, cut.bound if cut else bound).end)


class _Renewal:
    """The thread that renews a lease, and the lease's file."""

    def __init__(self, lake: Lake, bound: Bound) -> None:
        self._file = lake.root / name_lease(uuid.uuid4())
        self._text = json.dumps({"epoch": bound.epoch, "lsn": int(bound.lsn)})
        self._is_over = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._renew, name="walgate-lease", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):
            self._file.remove()

    def _renew(self) -> None:
        while not self._is_over.wait(_RENEW_S):
            self._write()

    def _write(self) -> None:
        with suppress(OSError):
            self._file.parent.make_folder()
            self._file.write_text(self._text)


@contextmanager
def holding_lease(lake: Lake, bound: Bound) -> Iterator[None]:
    """Hold a lease while a block reads at a bound."""
    lease = Lease(lake, bound)
    try:
        yield
    finally:
        lease.end()


def list_leased(lake: Lake, *, now: datetime) -> set[Bound]:
    """List the bounds of the living leases; remove the others. Raises: OSError."""
    found = set()
    for file in (lake.root / LEASES).list_files():
        place = lake.root / LEASES / file.name
        if now - (UNIX_START + timedelta(microseconds=file.modified_us)) > LIFE:
            place.remove()
        elif (bound := _read_bound(place)) is not None:
            found.add(bound)
    return found


def _read_bound(file: LakePlace) -> Bound | None:
    """The bound of a lease; None if its holder has just ended it, or writes it now."""
    try:
        found = json.loads(file.read_text())
        return Bound(int(found["epoch"]), Lsn(found["lsn"]))
    except (OSError, ValueError, KeyError):
        return None
