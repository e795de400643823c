"""A key, or its order, that is altered while its table is read: its ranges are cut again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.staging.backfills import BackfillLedger
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import read_changes
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer

T = TableName("public", "t")
ROWS = 120
# By the old key read from the first row on, by the new one from the last.
TABLE = f"""
create table t (id int primary key, code text collate "C" not null);
create unique index by_code on t (code);
insert into t select i, lpad(({ROWS} - i)::text, 5, '0') from generate_series(1, {ROWS}) i;
"""
ALTERED = {
    "primary key": "drop constraint t_pkey, add primary key (code)",
    "replica identity": "replica identity using index by_code",
    "type": "alter id type text",
}


@pytest.mark.parametrize(
    ("altered", "is_running"),
    [
        pytest.param("primary key", False, id="primary key, stopped"),
        pytest.param("replica identity", True, id="replica identity, running"),
        pytest.param("type", False, id="type, stopped", marks=pytest.mark.soak),
    ],
)
def test_a_backfill_begins_anew_under_another_key(
    pipeline: Pipeline, database18: Database, altered: str, *, is_running: bool
) -> None:
    for statement in TABLE.strip().split(";"):
        if statement:
            database18.execute(statement)
    slowly = {"WALGATE_BACKFILL__ROWS_PER_SECOND": "60"}
    settings = load_settings(pipeline.folder / "walgate.toml", slowly)
    stop = threading.Event()

    def act(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 4 and not stop.is_set():
            stop.set()
            if is_running:
                database18.execute(f"alter table t {ALTERED[altered]}")

    def run(stop: threading.Event) -> bool:
        done = run_backfills(settings, [T], chunk_rows=10, parallel=1, stop=stop, on_progress=act)
        return T in done

    if is_running:
        assert run(threading.Event())
    else:
        assert not run(stop)
        database18.execute(f"alter table t {ALTERED[altered]}")
        assert run(threading.Event())
    first, second = BackfillLedger(pipeline.lake).read_all()
    assert first.rows < ROWS
    assert (second.state, second.rows) == (BackfillState.DONE, ROWS)
    read = read_changes(pipeline.root, str(T), "read")
    version = read[-1]["relation_version"]
    since = [entry["values"][1] for entry in read if entry["relation_version"] == version]
    assert sorted(since) == sorted(code for (code,) in database18.query("select code from t"))


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_a_backfill_begins_again_under_another_collation_of_its_key(
    postgres15: PostgresServer, make_pipeline: Callable[..., Pipeline], *, is_running: bool
) -> None:
    """The bytes of Z sort before those of a; in a dictionary Z comes after."""
    with lend_database(postgres15) as database:
        pipeline = make_pipeline(database)
        try:
            require_read_again(pipeline, database, is_running=is_running)
        finally:
            pipeline.end()


def require_read_again(pipeline: Pipeline, database: Database, *, is_running: bool) -> None:
    """Change the collation in the middle of a backfill, and require each row to be read."""
    database.execute(
        'create table t (k text collate "und-x-icu" primary key);'
        " insert into t select 'a' || lpad(i::text, 4, '0') from generate_series(1, 110) i;"
        " insert into t select 'Z' || lpad(i::text, 4, '0') from generate_series(1, 10) i"
    )
    slowly = {"WALGATE_BACKFILL__ROWS_PER_SECOND": "60"}
    settings = load_settings(pipeline.folder / "walgate.toml", slowly)
    stop = threading.Event()

    def alter() -> None:
        database.execute('alter table t alter k type text collate "C"')

    def act(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 4 and not stop.is_set():
            stop.set()
            if is_running:
                alter()

    def run(stop: threading.Event) -> bool:
        done = run_backfills(settings, [T], chunk_rows=10, parallel=1, stop=stop, on_progress=act)
        return T in done

    if is_running:
        assert run(threading.Event())
    else:
        assert not run(stop)
        alter()
        assert run(threading.Event())
    keys = {key for (key,) in database.query("select k from t")}
    read = {entry["values"][0] for entry in read_changes(pipeline.root, str(T), "read")}
    assert keys - read == set()
    first, second = BackfillLedger(pipeline.lake).read_all()
    assert first.rows < ROWS
    assert (second.state, second.rows) == (BackfillState.DONE, ROWS)
