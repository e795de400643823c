"""A backfill is done when its rows are whole: what an update did not send is read again before."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cdc_core.backfill import worker
from cdc_core.backfill.incomplete import Move, find_incomplete
from cdc_core.backfill.results import BackfillProgress
from cdc_core.errors import SourceError
from cdc_core.settings import load_settings
from cdc_core.spooled import WHOLE, Scope
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import HOLE, fold, read_changes, read_source
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

T = TableName("public", "t")
ROWS = 40
# What happens while the rows of the first chunk are in the spool and its watermark is not written.
BEHIND_ITS_BACK = """
    update t set v = v + 100 where id <= 10;
    update t set id = -id where id in (3, 39, 40);
    update t set id = 1000 where id = -40;
    delete from t where id = 5;
    update t set big = 'sent' where id = 6;
"""


@pytest.fixture
def table(database18: Database, pipeline: Pipeline) -> Database:
    """Lend a database with a table whose rows have a TOASTed value, older than the slot."""
    database18.execute("create table t (id int primary key, v int, big text)")
    database18.execute("alter table t alter big set storage external")
    database18.execute(
        f"insert into t select i, i, repeat(md5(i::text), 100) from generate_series(1, {ROWS}) i"
    )
    pipeline.make_slot_again()
    return database18


def act_once(monkeypatch: pytest.MonkeyPatch, database: Database, *statements: str) -> None:
    """Run statements, each while another chunk stands open, from the first one on."""
    waiting = list(statements)

    def reach(name: str) -> None:
        if name == "after_chunk_stored" and waiting:
            database.execute(waiting.pop(0))

    monkeypatch.setattr("cdc_core.backfill.reading.reach", reach)


def run(
    pipeline: Pipeline,
    *,
    scope: Scope = WHOLE,
    on_progress: Callable[[TableName, BackfillProgress], None] = lambda _table, _progress: None,
) -> BackfillProgress:
    """Read the table, or a part of it, by 20 rows at a time."""
    settings = load_settings(pipeline.folder / "walgate.toml", {"WALGATE_HASH_KEY": "0123" * 16})
    done = run_backfills(
        settings,
        [T],
        chunk_rows=20,
        parallel=1,
        stop=threading.Event(),
        on_progress=on_progress,
        scope=scope,
    )
    return done[T]


def test_rows_that_were_updated_while_their_chunk_was_read_are_whole_once_it_is_done(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_once(monkeypatch, table, BEHIND_ITS_BACK)
    progress = run(pipeline)
    assert progress.stale == 10
    assert progress.chunks == 2, "what is read again is no chunk of the backfill"
    assert fold(pipeline.root, str(T)) == read_source(table, "t")
    # All of it is in the log before the sweep, from which on the table counts as whole.
    assert read_changes(pipeline.root, None)[-1]["op"] in {"sweep", "mark"}
    (sweep,) = read_changes(pipeline.root, None, "sweep")
    reads = read_changes(pipeline.root, str(T), "read")
    assert max(entry["commit_lsn"] for entry in reads) < sweep["commit_lsn"]


def test_rows_that_change_while_they_are_read_again_are_read_once_more(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = "update t set v = v + 1 where id <= 12; update t set id = id + 2000 where id in (7, 30)"
    quiet = "select 1"
    act_once(monkeypatch, table, BEHIND_ITS_BACK, quiet, again, again.replace("7", "2007"))
    run(pipeline)
    pipeline.catch_up()
    assert fold(pipeline.root, str(T)) == read_source(table, "t")


def test_a_backfill_is_not_done_while_a_row_changes_at_each_reading(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table may have an older value of a row from before; then no hole would be named."""
    with monkeypatch.context() as patch:
        act_once(patch, table, *["update t set v = v + 1 where id = 7"] * 1_000)
        with pytest.raises(SourceError, match=r"1 rows of public\.t changed each time"):
            run(pipeline)
    (report,) = BackfillLedger(pipeline.lake).read_all()
    assert (report.state, report.rows) == (BackfillState.STOPPED, ROWS - 1)
    assert not read_changes(pipeline.root, None, "sweep")
    # It goes on where it was.
    run(pipeline)
    assert fold(pipeline.root, str(T)) == read_source(table, "t")
    (report,) = BackfillLedger(pipeline.lake).read_all()
    assert report.state is BackfillState.DONE


def test_a_range_asks_for_no_row_that_it_does_not_cover(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_once(monkeypatch, table, "update t set v = v + 100 where id in (1, 25)")
    run(pipeline, scope=Scope(("1",), ("20",)))
    rows = {key: row for key, row in read_source(table, "t").items() if int(key) <= 20}
    kept = fold(pipeline.root, str(T))
    assert {key: row for key, row in kept.items() if key != "25"} == rows
    assert kept["25"] == ("25", "125", HOLE)


def test_rows_known_by_a_hash_of_their_key_are_whole_once_it_is_done(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + '[tables."public.t"]\nhash = ["id"]\n')
    act_once(monkeypatch, table, BEHIND_ITS_BACK)
    run(pipeline)
    assert sorted(row[1:] for row in fold(pipeline.root, str(T)).values()) == sorted(
        row[1:] for row in read_source(table, "t").values()
    )


def test_only_the_chunks_of_rows_known_by_a_hash_are_read_again(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + '[tables."public.t"]\nhash = ["id"]\n')
    act_once(monkeypatch, table, *["update t set v = v + 1 where id = 7"] * 4)
    run(pipeline)
    # Three chunks and their round; the row changed in the first chunk, and in the round.
    assert len(read_changes(pipeline.root, str(T), "read")) == ROWS - 1 + 19 + 20
    assert sorted(row[1:] for row in fold(pipeline.root, str(T)).values()) == sorted(
        row[1:] for row in read_source(table, "t").values()
    )


def test_a_backfill_of_a_hashed_key_holds_while_a_row_changes_at_each_reading(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it ended, the next run would read the whole table again."""
    monkeypatch.setattr(worker, "_HELD_S", 0.1)
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + '[tables."public.t"]\nhash = ["id"]\n')
    # Enough for the table's three chunks, and two for each of more than eleven rounds.
    act_once(monkeypatch, table, *["update t set v = v + 1 where id = 7"] * 28)
    held: list[str] = []

    def note(_: TableName, progress: BackfillProgress) -> None:
        if progress.state is BackfillState.HELD and progress.reason not in held:
            held.append(str(progress.reason))

    run(pipeline, on_progress=note)
    times = [
        f"1 rows of public.t changed each time that they were read, {n} times" for n in (10, 11)
    ]
    assert held[:2] == times
    assert sorted(row[1:] for row in fold(pipeline.root, str(T)).values()) == sorted(
        row[1:] for row in read_source(table, "t").values()
    )
    (report,) = BackfillLedger(pipeline.lake).read_all()
    assert report.state is BackfillState.DONE


def test_a_resumed_backfill_reads_again_what_an_earlier_run_of_it_dropped(
    table: Database, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_once(monkeypatch, table, BEHIND_ITS_BACK)
    with monkeypatch.context() as patch:

        def die(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(worker, "complete_rows", die)
        with pytest.raises(KeyboardInterrupt):
            run(pipeline)
    assert any(HOLE in row for row in fold(pipeline.root, str(T)).values())
    run(pipeline)
    assert fold(pipeline.root, str(T)) == read_source(table, "t")


def at(number: int) -> Position:
    return Position(1, Lsn(number), 0)


def move(number: int, old: str, new: str) -> Move:
    return Move(at(number), (old,), (new,))


def test_only_what_the_last_round_may_have_missed_is_read_again() -> None:
    moves = [move(1, "a", "b"), move(5, "b", "c"), move(7, "x", "y"), move(9, "c", "d")]
    first = find_incomplete({("k",)}, moves, read_before=None, since=None)
    assert first == {("k",), ("b",), ("c",), ("y",), ("d",)}
    second = find_incomplete({("k",), ("z",)}, moves, read_before=first, since=at(4))
    assert second == {("k",), ("c",), ("d",)}
    assert find_incomplete((), moves, read_before=second, since=at(9)) == frozenset()
