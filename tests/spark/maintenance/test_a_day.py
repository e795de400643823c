"""A day of a pipeline in an hour: its lake neither grows nor slows down, and reads as the source.

The test plays a day in about an hour: it shortens every default interval by the same factor. So
maintenance keeps each cut for some 50 seconds and not for 15 minutes. No clock is faked. The test
does not shorten leases. It estimates the length of the day, and corrects it early. Checkpoints keep
the first estimate, because a table gets this property when it is created.

The default retention is a week, so capture trims nothing during the day. After the day, the test
shortens the retention. Capture then trims the log.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import walgate
import walgate.table
from cdc_core.lake_layout import CHECKPOINT_PROPERTIES, DELTA_LOG
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.tables import STAGING_PROPERTIES
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.delta import committer
from spark_jobs.delta.direct_parquet import KEEPING_PROPERTIES, allow_old_versions
from spark_jobs.lake.ledger import Cut, find_oldest_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.maintenance.cut_ledgers import read_cuts
from spark_jobs.query.as_of import table_at
from spark_jobs.query.read_bound import find_bound_at
from tests.fix_spark import make_quick
from tests.lakes import path_of
from tests.spark.log_writer import EPOCH_START
from tests.spark.maintenance.timed_lake import EVENTS, IDLE, KEYS, Seconds, T, TimedLake
from tests.spark.relations import Entry, insert, update
from tests.spark.small_lake import SmallLake

# The changes of a commit of the log.
UPDATES = 40
Rows: TypeAlias = dict[int, str]


class Space(NamedTuple):
    """The bytes of all files of a lake, divided by those of some of its files.

    Decision 16 says why the first misses its bar: the grace keeps versions that are no longer new.
    """

    # The data files of the newest tables and of the log.
    newest: float
    # The data files of the tables and of the log that the settings keep.
    data: float
    # All files that the settings keep.
    kept: float


class Day:
    """A lake with a hot, a growing and an idle table, and the rows of the hot one at each LSN.

    A machine is faster in some minutes than in others. So what the old lake takes is compared with
    what copies of its beginning take for the same work in the same minutes. A table that has just
    written a checkpoint is faster than one with many commits since, so the copies differ in that.
    """

    def __init__(self, spark: SparkSession, folder: Path, day_s: float) -> None:
        self.folder, self.day_s = folder, day_s
        self.small = SmallLake(make_quick(spark), folder)
        self.lake = self.small.lake
        # Spark refuses versions older than an hour (docs/operating.md#gaps).
        allow_old_versions(self.small.spark)
        self.chance = random.Random(20261126)
        self.old = TimedLake(self.small, folder, day_s, defaultdict(list))
        self.config = self.old.config
        self.beginnings: deque[SmallLake] = deque()
        self.young: Seconds = defaultdict(list)
        self.changes: dict[int, Rows] = {}
        self.late: deque[tuple[float, int, Callable[[], Rows]]] = deque()
        self.late_reads = 0
        self.stage([insert(IDLE, "1", "v"), *(insert(T, str(key), "first") for key in range(KEYS))])

    def stage(self, entries: list[Entry]) -> None:
        """Stage one transaction of the old lake, and remember what it changed."""
        self.changes[self.old.stage(entries)] = {
            int(entry["values"][0]): entry["values"][1]
            for relation, entry in entries
            if relation is T
        }

    def make_entries(self) -> list[Entry]:
        """The changes of one transaction."""
        keys = self.chance.sample(range(KEYS), UPDATES)
        changes = [update(T, str(key), self.chance.randbytes(12).hex()) for key in keys]
        return [*changes, insert(EVENTS, str(self.chance.getrandbits(31)), "happened")]

    def play_round(self, commits: int) -> None:
        for _ in range(commits):
            self.stage(self.make_entries())
        with self.old.timing("round"):
            self.old.merge(is_thorough=False)

    def set_day_length(self, day_s: float) -> None:
        """Set the length of the test's day in seconds, from now on."""
        self.day_s = day_s
        self.old.set_day_length(day_s)
        # If the grace is shorter now, the files of these readers may go before they are due.
        self.late.clear()

    def trim_to(self, cut: Cut) -> None:
        """Shorten the retention so that a cut becomes the oldest one. Let capture trim the log."""
        for _ in range(3):
            retention = datetime.now(UTC) - cut.created_at
            self.old.keeping = replace(self.old.keeping, retention=retention, often=retention)
            self.maintain()

    def maintain(self) -> None:
        assert self.old.keeper.maintain(self.old.keeping).problems == ()
        while self.old.log.tend():
            pass

    def look(self) -> None:
        """Look at the old lake. Do the late reads that are due, and begin another."""
        bound = self.old.look()
        now = time.monotonic()
        while self.late and self.late[0][0] <= now:
            _, lsn, read = self.late.popleft()
            assert read() == self.find_truth(lsn)
            self.late_reads += 1
        due = now + self.old.keeping.grace.total_seconds() * 0.8
        self.late.append((due, int(bound.lsn), self.open_reader()))

    def keep_beginning(self) -> None:
        """Copy the lake as it is."""
        folder = self.folder / f"beginning-{len(self.beginnings)}"
        self.beginnings.append(self.small.copy_to(folder))

    def play_young_round(self, commits: int) -> None:
        """Do the work of a round and of a look on a copy of the next beginning."""
        folder = self.folder / "young"
        self.beginnings.rotate(-1)
        small = self.beginnings[0].copy_to(folder)
        young = TimedLake(small, folder, self.day_s, defaultdict(list))
        for is_first in (True, False):
            if not is_first:  # The first round warms up.
                young.seconds = self.young
            for _ in range(commits):
                young.stage(self.make_entries())
            with young.timing("round"):
                young.merge(is_thorough=False)
        young.look()
        shutil.rmtree(folder)

    def find_growth(self) -> dict[str, float]:
        """The median of the last fifth of the old lake, divided by that of the young lakes."""
        growth = {}
        for work, young in self.young.items():
            old = self.old.seconds[work]
            last = old[-max(1, len(old) // 5) :]
            growth[work] = round(statistics.median(last) / statistics.median(young), 2)
        return growth

    def open_reader(self) -> Callable[[], Rows]:
        """Open the newest version: with a lease by `walgate.open`, or without one."""
        folder = str(path_of(self.lake.locate(T.table)))
        match self.chance.randrange(3):
            case 0:
                dataset = DeltaTable(folder).to_pyarrow_dataset()
                return lambda: to_rows(dataset.to_table())
            case 1:
                # Without a version, polars opens the newest when it collects.
                frame = pl.scan_delta(folder, version=DeltaTable(folder).version())
                return lambda: to_rows(frame.collect().to_arrow())
            case _:
                opened = walgate.open(self.config).at().table("t")
                return lambda: to_rows(read_quietly(opened))

    def find_truth(self, lsn: int) -> Rows:
        truth: Rows = {}
        for end_lsn, changed in self.changes.items():
            if end_lsn <= lsn:
                truth |= changed
        return truth

    def measure_space(self) -> Space:
        """Divide the bytes of all files by those of three sets of files.

        The settings keep what kept cuts name, and what was written within the grace. The commits of
        the log and of the cuts are an exception, because they go early.
        """
        root = path_of(self.lake.root)
        places = [self.lake.changes, *(self.lake.locate(one.table) for one in (T, EVENTS, IDLE))]
        newest: dict[LakePlace, set[int | None]] = {place: {None} for place in places}
        cut: dict[LakePlace, set[int | None]] = {place: {*some} for place, some in newest.items()}
        for kept in read_cuts(self.lake):
            for name, version in kept.versions.items():
                cut[self.lake.locate(TableName.parse(name))].add(version)
        # What was compacted or dropped since the last maintenance left its table a little later.
        young = time.time() - 1.25 * self.old.keeping.grace.total_seconds()
        sizes = {file: file.stat() for file in root.rglob("*") if file.is_file()}
        total = sum(found.st_size for found in sizes.values())
        folders = {path_of(place) for place in places}
        early = {path_of(place) / DELTA_LOG for place in (self.lake.changes, self.lake.cuts)}
        stays = list_data_files(cut) | {
            file
            for file, found in sizes.items()
            if found.st_mtime >= young and file.parent not in early
        }

        def compare_with(files: Iterable[Path]) -> float:
            return round(total / sum(sizes[file].st_size for file in files if file in sizes), 2)

        return Space(
            newest=compare_with(list_data_files(newest)),
            data=compare_with(
                file for file in stays if file.parent in folders and file.suffix == ".parquet"
            ),
            kept=compare_with(stays),
        )

    def check_reads(self, count: int) -> None:
        """Read the hot table at random LSNs and times, and at random cuts by every reader."""
        oldest = find_oldest_bound(self.lake)
        assert oldest is not None
        readable = [lsn for lsn in self.changes if lsn >= oldest.lsn]
        assert readable
        for lsn in self.chance.sample(readable, min(count, len(readable))):
            truth, bound = self.find_truth(lsn), find_bound_at(self.lake, Lsn(lsn))
            rows = table_at(self.small.spark, self.lake, T.table, bound).rows
            assert to_rows(rows.toArrow()) == truth
            at: str | datetime = str(Lsn(lsn))
            # At the time of the newest transaction, another one may still come.
            if lsn < max(readable) and self.chance.random() < 0.5:
                at = EPOCH_START + timedelta(milliseconds=lsn)
            assert to_rows(read_quietly(walgate.open(self.config).at(at).table("t"))) == truth
        cuts = read_cuts(self.lake)
        for cut in self.chance.sample(cuts, min(count, len(cuts))):
            self.check_cut(cut)

    def check_cut(self, cut: Cut) -> None:
        version = cut.versions[str(T.table)]
        truth, folder = self.find_truth(int(cut.bound.lsn)), str(self.lake.locate(T.table))
        table = DeltaTable(folder, version=version)
        assert to_rows(table.to_pyarrow_table()) == truth
        assert to_rows(pa.Table.from_pandas(table.to_pandas())) == truth
        assert to_rows(pl.scan_delta(folder, version=version).collect().to_arrow()) == truth
        with duckdb.connect() as connection:
            connection.register("stored", table.to_pyarrow_dataset())
            assert to_rows(connection.sql("select * from stored").to_arrow_table()) == truth
        reader = self.small.spark.read.format("delta").option("versionAsOf", version)
        assert to_rows(reader.load(folder).toArrow()) == truth
        opened = walgate.open(self.config).at(str(cut.bound.lsn)).table("t")
        assert not opened.needs_spark
        assert to_rows(read_quietly(opened)) == truth


def list_data_files(versions: Mapping[LakePlace, Iterable[int | None]]) -> set[Path]:
    """The data files of versions of tables; the newest version is None."""
    return {
        path_of(place) / name
        for place, some in versions.items()
        for version in some
        for name in pa.table(DeltaTable(place.uri, version=version).get_add_actions())[
            "path"
        ].to_pylist()
    }


def shorten_checkpoints(monkeypatch: pytest.MonkeyPatch, day_s: float, rounds: int) -> None:
    """In new tables, let a checkpoint name the files that left within an hour of the test's day.

    In a run of few rounds, let Arrow write a checkpoint every four commits.
    """
    if rounds < 100:
        monkeypatch.setattr(committer, "_CHECKPOINT_INTERVAL", 4)
    ((name, usual),) = CHECKPOINT_PROPERTIES.items()
    assert usual == "interval 1 hours"
    for properties in (CHECKPOINT_PROPERTIES, STAGING_PROPERTIES, KEEPING_PROPERTIES):
        monkeypatch.setitem(properties, name, f"interval {max(1, day_s / 24):.0f} seconds")


def to_rows(table: pa.Table) -> Rows:
    rows: list[dict[str, Any]] = table.select(["k", "v"]).to_pylist()
    assert len({row["k"] for row in rows}) == len(rows)
    return {row["k"]: row["v"] for row in rows}


def read_quietly(opened: walgate.TableAt) -> pa.Table:
    """Read a table that no backfill has made whole."""
    with pytest.warns(walgate.TableWarning, match="may lack rows"):
        return opened.to_arrow()


@pytest.mark.parametrize(
    ("rounds", "commits", "day_s"),
    [
        pytest.param(20, 3, 12.0, id="sample"),
        pytest.param(
            5000, 4, 5000.0, id="day", marks=[pytest.mark.soak, pytest.mark.timeout(10_800)]
        ),
    ],
)
def test_a_lake_neither_grows_nor_slows_down_with_its_age(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    commits: int,
    day_s: float,
) -> None:
    monkeypatch.setattr(walgate.table, "open_session", lambda _: spark)
    shorten_checkpoints(monkeypatch, day_s, rounds)
    day, began = Day(spark, tmp_path, day_s), time.monotonic()
    space = list[Space]()
    # The default schedule of maintenance is every ten minutes: 144 times a day.
    pause = max(10, rounds // 144)
    for number in range(rounds):
        # Each copy has another number of commits since the checkpoints of its tables.
        if number in range(rounds // 20, rounds // 20 + rounds // 50 + 1, 11):
            day.keep_beginning()
        day.play_round(commits)
        if number % pause == pause - 1:
            day.maintain()
            day.look()
            if number >= rounds * 4 / 5:
                day.play_young_round(commits)
        # Set the day's length by the speed of this machine. The sample is too short to measure it.
        if rounds >= 1000 and number == rounds // 25:
            day.set_day_length((time.monotonic() - began) * rounds / (number + 1))
        if number % (rounds // 10) == 0 and number > rounds / 2:
            space.append(day.measure_space())
    for _ in range(3):
        day.maintain()
    kept, log = read_cuts(day.lake), LogFiles.open(day.lake)
    assert log is not None
    growth = day.find_growth()
    space.append(day.measure_space())
    files = sum(1 for file in path_of(day.lake.root).rglob("*") if file.is_file())
    medians = {work: statistics.median(found) for work, found in day.young.items()}
    print(  # noqa: T201 - `pytest -s` shows them.
        f"growth {growth} from {medians} s; {len(kept)} cuts of {rounds}, {len(log.files)} files of"
        f" the log, {files} files in all, {day.late_reads} late reads; all files take a multiple of"
        f" {space}"
    )
    day.check_reads(3 if rounds < 100 else 50)
    assert len(log.files) < rounds * commits * 0.75
    assert day.late_reads > 0
    for _ in range(10):
        day.stage(day.make_entries())
        day.old.merge(is_thorough=False)
    # The sample may have its log in one file. Capture trims it only if the oldest cut is above it.
    day.trim_to(read_cuts(day.lake)[-10 if rounds < 100 else len(kept) // 2])
    log_after = LogFiles.open(day.lake)
    assert log_after is not None
    assert log_after.trimmed is not None
    assert log.trimmed is None or log.trimmed < log_after.trimmed
    assert read_cuts(day.lake)[0].bound > kept[0].bound
    assert len(read_cuts(day.lake)) < rounds * 0.75
    day.check_reads(3 if rounds < 100 else 50)
    # In a short run, each median is of few tries, and rounds are longer than the intervals.
    if rounds >= 5000:
        assert len(kept) < rounds * 0.1
        assert max(growth.values()) <= 1.3
        assert log.trimmed is None
        assert max(times.kept for times in space) <= 1.5
        assert max(times.data for times in space) <= 3
        assert max(times.newest for times in space) <= 3
