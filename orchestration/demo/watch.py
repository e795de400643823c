"""Checks the shop's invariants while it sells, at whole cuts and, in between, at `live`.

A cut is whole if every table of the shop has all its rows at it. One check runs at a time, on its
own thread, so that Ctrl-C can end the wait for it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import TypeVar

from pyspark.sql import SparkSession

from cdc_core.vocabulary import TableName
from orchestration.demo.invariants import Breach, find_breaches, list_whole_cuts
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.query.read_bound import find_bound_at

T = TypeVar("T")


def begin(work: Callable[[], T]) -> Future[T]:
    """Do `work` on a thread that does not keep the process alive."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - the caller of the result gets it.
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


class Watch:
    """Which cuts were checked, how often `live` was checked, and which invariants did not hold."""

    def __init__(
        self, session: SparkSession, lake: Lake, tables: Collection[TableName], *, seed: int
    ) -> None:
        """Nothing is checked yet; `tables` are all tables of the shop."""
        self._random = random.Random(seed)
        self._session = session
        self._lake = lake
        self._tables = tables
        self._checking: Future[list[Breach]] | None = None
        self._place: Bound | None = None
        self._checked: set[Bound] = set()
        self._is_live_next = False
        self.live_readings = 0
        self.breaches: list[Breach] = []

    @property
    def cuts(self) -> int:
        """The number of cuts at which all invariants were checked."""
        return len(self._checked)

    @property
    def is_checking(self) -> bool:
        """Whether a check is under way."""
        return self._checking is not None

    def list_cuts(self) -> list[Bound]:
        """All cuts so far at which every table is whole, oldest first."""
        return list_whole_cuts(self._lake, self._tables)

    def has_checked_since(self, cut: Bound) -> bool:
        """Whether all invariants were checked at a cut or at a later one."""
        return any(one >= cut for one in self._checked)

    def look(self, *, wants_live: bool) -> None:
        """Take what a check found, and begin the next if none is under way.

        Raises: the error that a check met.
        """
        self.take_findings()
        if not self.is_checking:
            self.begin_next(wants_live=wants_live)

    def take_findings(self) -> None:
        """Take what a check found, if it has ended. Raises: the error that it met."""
        if self._checking is None or not self._checking.done():
            return
        self.breaches += self._checking.result()
        if self._place is None:
            self.live_readings += 1
        else:
            self._checked.add(self._place)
        self._checking = None

    def begin_next(self, *, wants_live: bool) -> None:
        """Begin a check of the newest cut, or of a random one of the cuts that were not checked.

        If `wants_live`, every second check is at `live`, and so is each check when no cut is left.
        """
        cuts = self.list_cuts()
        unchecked = [cut for cut in cuts if cut not in self._checked]
        if wants_live and (self._is_live_next or not unchecked):
            self._begin(None)
        elif unchecked:
            self._begin(cuts[-1] if cuts[-1] in unchecked else self._random.choice(unchecked))

    def _begin(self, cut: Bound | None) -> None:
        """Begin to check a cut; None means `live`."""
        self._place = cut
        self._is_live_next = cut is not None
        self._checking = begin(
            lambda: find_breaches(
                self._session, self._lake, cut or find_bound_at(self._lake, "live")
            )
        )
