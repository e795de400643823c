"""Leases of readers: a file in the lake that says what a process reads.

As long as a reader's lease lives, maintenance keeps the cut that it names, and the log above this
cut. A lease can also name versions of tables, because perhaps no kept cut names them: a reader may
have found them by a later cut, and a verification reads versions newer than those of cuts.

A lease lives for an hour after its holder wrote it last. The holder writes it again every few
minutes. So the lease of a killed process ends by itself. A reader that cannot write to the lake
reads without a lease. Then the versions that it has found stay for the grace, but a read that must
fold the log may fail as soon as its cut is dropped.
"""

from __future__ import annotations

import json
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cdc_core.lake_layout import LEASES, name_lease
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import UNIX_START, Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import find_cut

LIFE = timedelta(hours=1)
_RENEW_S = 300.0


@dataclass(frozen=True, slots=True)
class Leased:
    """What a lease keeps: the cut at a bound, and versions of tables, each with its table."""

    bound: Bound
    versions: frozenset[tuple[str, int]] = frozenset()


class Lease:
    """A lease of this process. It ends by `end`, or when nothing refers to it any more."""

    def __init__(self, lake: Lake, bound: Bound) -> None:
        """Write the lease, and begin to renew it. Raises: DeltaError if the cuts cannot be read.

        A lake that refuses the lease raises nothing.
        """
        cut = find_cut(lake, bound)
        # A later cut may come between this cut and the bound: the lease does not keep that one.
        self.bound = cut.bound if cut else bound
        self._renewal = _Renewal(lake, self.bound)
        self.end = weakref.finalize(self, self._renewal.end)

    def keep_version(self, table: TableName, version: int) -> None:
        """Keep a version of a table's rows until the lease ends, if the lake accepts the lease."""
        self._renewal.keep_version(table, version)


class _Renewal:
    """The thread that renews a lease, and the lease's file."""

    def __init__(self, lake: Lake, bound: Bound) -> None:
        self._file = lake.root / name_lease(uuid.uuid4())
        self._leased = Leased(bound)
        self._is_over, self._writing = threading.Event(), threading.Lock()
        self._write()
        self._thread = threading.Thread(target=self._renew, name="walgate-lease", daemon=True)
        self._thread.start()

    def keep_version(self, table: TableName, version: int) -> None:
        kept = self._leased.versions | {(str(table), version)}
        if kept != self._leased.versions:
            self._leased = replace(self._leased, versions=kept)
            self._write()

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):
            self._file.remove()

    def _renew(self) -> None:
        while not self._is_over.wait(_RENEW_S):
            self._write()

    def _write(self) -> None:
        with self._writing, suppress(OSError):
            self._file.parent.make_folder()
            self._file.replace_text(_to_json(self._leased))


@contextmanager
def holding_lease(lake: Lake, bound: Bound) -> Iterator[Lease]:
    """Hold a lease while a block reads at a bound."""
    lease = Lease(lake, bound)
    try:
        yield lease
    finally:
        lease.end()


def list_leased(lake: Lake, *, now: datetime) -> set[Leased]:
    """List what the living leases keep; remove the other leases.

    Raises: OSError if a living lease cannot be read. What readers need is not known then.
    """
    found = set()
    for file in (lake.root / LEASES).list_files():
        place = lake.root / LEASES / file.name
        if now - (UNIX_START + timedelta(microseconds=file.modified_us)) > LIFE:
            with suppress(OSError):  # It may be the file of another user.
                place.remove()
        elif (leased := _read_leased(place)) is not None:
            found.add(leased)
    return found


def _to_json(leased: Leased) -> str:
    bound = {"epoch": leased.bound.epoch, "lsn": int(leased.bound.lsn)}
    return json.dumps(bound | {"versions": sorted(leased.versions)})


def _read_leased(file: LakePlace) -> Leased | None:
    """What a lease keeps; None if its holder has just ended it, or if it is no lease."""
    try:
        found = json.loads(file.read_text())
        bound = Bound(int(found["epoch"]), Lsn(found["lsn"]))
        return Leased(bound, frozenset((str(name), int(one)) for name, one in found["versions"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
