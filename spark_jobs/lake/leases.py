"""Leases of readers: a file in the lake that names the cut from which a process reads.

As long as a reader's lease lives, maintenance keeps this cut, and the log above it. A lease lives
for an hour after its holder wrote it last. The holder writes it again every few minutes. So the
lease of a killed process ends by itself. A reader that cannot write to the lake reads without a
lease. Then the versions that it has found stay for the grace, but a read that must fold the log may
fail as soon as its cut is dropped.
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
        """Write the lease, and begin to renew it. Raises: DeltaError if the cuts cannot be read.

        A lake that refuses the lease raises nothing.
        """
        cut = find_cut(lake, bound)
        # A later cut may come between this cut and the bound, and this reader has opened this one.
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
            self._file.replace_text(self._text)


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
    """The bound of a lease; None if its holder has just ended it, or if it is no lease."""
    try:
        found = json.loads(file.read_text())
        return Bound(int(found["epoch"]), Lsn(found["lsn"]))
    except (FileNotFoundError, ValueError, KeyError):
        return None
