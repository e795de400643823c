"""A lake whose work is timed, and whose intervals of maintenance fit a day of some seconds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import TypeAlias

from cdc_core.lake_storage.cleaning import COMMIT_LIFE_S
from cdc_core.settings import load_settings
from cdc_core.staging.upkeep import SETTLED_S
from orchestration.status.status import read_status
from spark_jobs.lake.lake import Bound
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.spark.maintenance.maintained_lake import CaptureLog, Keeper
from tests.spark.relations import Entry, insert, make_relation
from tests.spark.small_lake import SmallLake
from tests.walgate.configured_lake import configure

T, EVENTS = make_relation("t", "k int4, v text"), make_relation("events", "k int4, v text")
IDLE = make_relation("idle", "k int4, v text")
KEYS = 1000
DAY_S = 86_400
Seconds: TypeAlias = defaultdict[str, list[float]]


class TimedLake:
    """A lake, and the seconds that each kind of work on it took, in the order of the work."""

    def __init__(self, small: SmallLake, folder: Path, day_s: float, seconds: Seconds) -> None:
        self.small, self.lake, self.folder = small, small.lake, folder
        self.seconds = seconds
        self.keeper = Keeper(self.lake, folder / "spool")
        self.set_day_length(day_s)
        self.config = configure(self.lake.root)

    def set_day_length(self, day_s: float) -> None:
        """Set the length of the test's day in seconds."""
        self.keeping = make_keeping(day_s)
        self.log = CaptureLog(
            self.small.log,
            self.folder / "spool",
            grace_s=self.keeping.grace.total_seconds(),
            settled_s=SETTLED_S * day_s / DAY_S,
            commit_life_s=COMMIT_LIFE_S * day_s / DAY_S,
        )

    @contextmanager
    def timing(self, work: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.seconds[work].append(time.perf_counter() - began)

    def stage(self, entries: list[Entry]) -> int:
        """Stage one transaction, as capture does."""
        end_lsn, seconds = self.log.stage(entries)
        self.seconds["commit"].append(seconds)
        return end_lsn

    def merge(self, *, is_thorough: bool) -> None:
        """Merge in one round; thoroughly, as the first round of a run does."""
        merge_until(self.small.spark, self.lake, round_rows=1_000_000, is_thorough=is_thorough)

    def look(self) -> Bound:
        """Restart capture and merges, read the status, and run a query; return its bound."""
        with self.timing("start-up of capture"):
            assert self.keeper.read_transactions(since=self.small.log.lsn - 10 * 16)
        self.stage([insert(EVENTS, str(-self.small.log.lsn), "happened")])
        with self.timing("start-up of merges"):
            self.merge(is_thorough=True)
        with self.timing("status"):
            answer = read_status(load_settings(self.config, {}))
        assert len(answer["tables"]) == 3
        with self.timing("sql"):
            question = "select count(*) as n from public.t"
            bound = find_bound_at(self.lake, "latest")
            (row,) = answer_query(self.small.spark, self.lake, question, bound).rows.collect()
        assert row["n"] == KEYS
        return bound


def make_keeping(day_s: float) -> Keeping:
    """What is kept of a day that lasts so many seconds."""
    usual = Keeping()
    intervals: list[timedelta] = [getattr(usual, field.name) for field in fields(usual)]
    return Keeping(*(interval * (day_s / DAY_S) for interval in intervals))
