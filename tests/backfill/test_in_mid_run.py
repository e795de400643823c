"""The table at an LSN is the source at that LSN, while writers, backfill and merges go on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from pyspark.sql import SparkSession

from cdc_core.backfill.results import BackfillProgress
from cdc_core.backfill.visibility import ChangedKeys
from cdc_core.settings import Settings, load_settings
from cdc_core.source.snapshots import open_snapshot
from cdc_core.vocabulary import Lsn, TableName
from orchestration.backfill.backfill import run_backfills
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.query.as_of import table_at
from tests.backfill.folded_log import read_changes
from tests.backfill.hot_table import TABLE, FoldedLog, lay, pausing, stage_stream, writing
from tests.backfill.test_unseen_commit import Capturing
from tests.backfill.unguarded import let_all_pass
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_pipeline import Pipeline

T = TableName.parse(TABLE)
ROWS = 2000
CHUNK = 100
# So many chunks are in the log at the looks in mid-run, by which others are being read.
LOOKS = (3, 6, 9)

Rows = dict[int, tuple[str | None, ...]]


@dataclass
class Known:
    """The keys of which the log told all at some LSN; without bounds those of the whole table."""

    keys: set[int] = field(default_factory=set)
    is_whole: bool = False

    def choose(self, rows: Rows) -> Rows:
        return {key: row for key, row in rows.items() if self.is_whole or key in self.keys}


@dataclass(frozen=True)
class Step:
    """Where a chunk or the sweep entered the log, and what the log told all of from there on."""

    commit_lsn: int
    end_lsn: Lsn
    known: Known


def read_steps(pipeline: Pipeline) -> Iterator[Step]:
    known = Known()
    for entry in read_changes(pipeline.root, None, "mark", "sweep"):
        said = json.loads(entry["detail"] or "null")
        if not isinstance(said, dict) or said.get("state") != "staged":
            continue
        low, high = (None if said[end] is None else int(said[end][0]) for end in ("low", "high"))
        read = set(range((low or 0) + 1, (high or ROWS) + 1))
        known = Known(known.keys | read, known.is_whole or entry["op"] == "sweep")
        yield Step(entry["commit_lsn"], Lsn(entry["end_lsn"]), known)


def find_known(pipeline: Pipeline, lsn: Lsn) -> Known:
    found = Known()
    for step in read_steps(pipeline):
        found = step.known if step.end_lsn <= lsn else found
    return found


def see_source(settings: Settings) -> tuple[Lsn, Rows]:
    """The source's rows by one snapshot, and the LSN that it is consistent at."""
    with open_snapshot(
        settings.source, [T], find_history=lambda: None, patience_s=60, stop=threading.Event()
    ) as snapshot:
        found = snapshot.connection.execute("select id, id::text, n::text, note from hot")
        return snapshot.lsn, {row[0]: row[1:] for row in found.fetchall()}


def see_lake(session: SparkSession, lake: Lake, lsn: Lsn) -> Rows:
    rows = table_at(session, lake, T, Bound(1, lsn)).rows
    texts = rows.selectExpr("id", "string(id)", "string(n)", "note", "_holes is not null")
    found = texts.collect()
    assert not any(row[-1] for row in found)
    return {row[0]: tuple(row[1:-1]) for row in found}


def compare(lake: Rows, source: Rows, known: Known) -> set[int]:
    """The keys that are not as in the source.

    What was not read yet may be missing, and is right from its first change on.
    """
    read, told = known.choose(lake), known.choose(source)
    differing = {key for key in read.keys() | told.keys() if read.get(key) != told.get(key)}
    return differing | {key for key, row in lake.items() if source.get(key) != row}


@dataclass(frozen=True)
class Look:
    """What differed at a snapshot of the source, and what was known there."""

    known: Known
    differing: set[int]


class Looking:
    """Looks at both sides while all goes on, and has what is staged merged after each."""

    def __init__(self, pipeline: Pipeline, settings: Settings, spark: SparkSession) -> None:
        self.lake, self.session = Lake.of(settings), spark.newSession()
        self.looks: list[Look] = []
        self._pipeline, self._settings = pipeline, settings

    def look(self, writers: ChildProcess) -> None:
        """Compare by a snapshot that is taken while the writers write."""
        lsn, source = see_source(self._settings)
        with pausing(writers):
            wait_for(lambda: self._pipeline.staged() >= lsn, 120, "the log to come to it")
            known = find_known(self._pipeline, lsn)
            lake = see_lake(self.session, self.lake, lsn)
            self.looks.append(Look(known, compare(lake, source, known)))
            self.merge()

    def merge(self) -> None:
        merge_until(self.session, self.lake, round_rows=1_000_000)

    def look_at_times(self, writers: ChildProcess, progress: BackfillProgress) -> None:
        """Look whenever so many chunks more are in the log, and others are being read."""
        if progress.chunks in LOOKS[len(self.looks) :]:
            self.look(writers)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("seed", "is_guarded"), [(300, True), (301, True), (302, True), (300, False)]
)
def test_a_table_at_an_lsn_is_the_source_in_mid_run(
    pipeline: Pipeline,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seed: int,
    is_guarded: bool,
) -> None:
    streamed = lay(pipeline, ROWS)
    if not is_guarded:
        monkeypatch.setattr(ChangedKeys, "find_current", let_all_pass)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    looking = Looking(pipeline, settings, spark)
    with ExitStack() as running:
        capture = Capturing(settings)
        capture.start()
        running.callback(capture.finish)
        # So that no cold JVM is waited for under load.
        pipeline.database.execute("update hot set n = -1 where id = 1")
        written = pipeline.current_lsn()
        wait_for(lambda: pipeline.staged() >= written, 60, "the first change")
        looking.merge()
        with writing(pipeline.database, streamed, keys=ROWS, seed=seed) as writers:
            done = run_backfills(
                settings,
                [T],
                chunk_rows=CHUNK,
                parallel=4,
                stop=threading.Event(),
                on_progress=lambda _, progress: looking.look_at_times(writers, progress),
            )[T]
            looking.look(writers)
    stage_stream(streamed)
    by_stream, steps = FoldedLog(streamed / "lake"), list(read_steps(pipeline))
    wrong_steps = 0
    for step in steps:
        by_stream.go_to(step.commit_lsn)
        source = {key: tuple(values) for key, (_, values) in by_stream.rows.items()}
        lake = see_lake(looking.session, looking.lake, step.end_lsn)
        wrong_steps += bool(compare(lake, source, step.known))
    wrong_looks = sum(bool(look.differing) for look in looking.looks)
    print(  # noqa: T201 - to run it again, and figures of a soak.
        f"seed {seed}: {done.chunks} chunks, {done.stale} rows stale; wrong: {wrong_looks} of"
        f" {len(looking.looks)} looks, {wrong_steps} of {len(steps)} watermarks"
    )
    assert len(steps) == done.chunks + 1, "a sweep follows the chunks"
    assert [look.known.is_whole for look in looking.looks] == [False, False, False, True]
    assert all(look.known.keys for look in looking.looks)
    assert done.stale or not is_guarded, "no row changed while it was read"
    # A stale row that is changed once more is right again: a few looks may miss what steps do not.
    assert (wrong_looks + wrong_steps == 0) == is_guarded
