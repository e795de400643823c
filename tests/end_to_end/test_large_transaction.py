"""One transaction larger than memory: bounded memory, one commit, and the connection kept."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.child_process import ChildProcess
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.truth import require_whole_commits

MB = 1 << 20
TABLE = """
create table big (id bigint primary key, a int, b smallint, c text, d numeric(18,4), e boolean,
                  f timestamptz, g date, h double precision, i jsonb)
"""
ROWS = """
insert into big
select n, (n::bigint * 7919) % 1000000, n % 30000, 'customer ' || md5(n::text), (n % 1000000) / 7.0,
       n % 2 = 0, '2026-01-01'::timestamptz + n * interval '1 second',
       '2026-01-01'::date + n % 3000,
       case when n % 20 = 0 then null else n / 3.0 end,
       jsonb_build_object('k', n, 's', md5((n + 1)::text))
from generate_series(1, {rows}) n
"""


@contextmanager
def watched_memory(child: ChildProcess) -> Iterator[Callable[[], int]]:
    """Watch a capture's memory; gives the largest seen, in bytes."""
    process, largest, stop = psutil.Process(child.pid), [0], threading.Event()

    def look() -> None:
        while not stop.wait(0.02) and process.is_running():
            largest[0] = max(largest[0], process.memory_info().rss)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: largest[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("rows", "bound", "settings"),
    [
        pytest.param(
            200_000,
            330 * MB,
            {
                "WALGATE_CAPTURE__SPOOL_BYTES": "8MB",
                "WALGATE_CAPTURE__BATCH_BYTES": "16MB",
            },
            id="200000 rows",
        ),
        pytest.param(
            1_500_000,
            512 * MB,
            {},
            id="1500000 rows",
            marks=[pytest.mark.soak, pytest.mark.timeout(900)],
        ),
    ],
)
def test_f14_a_large_transaction_takes_bounded_memory_and_one_commit(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    record_property: Callable[[str, object], None],
    rows: int,
    bound: int,
    settings: dict[str, str],
) -> None:
    database18.execute(f"alter database {database18.name} set wal_sender_timeout = '10s'")
    database18.execute(TABLE)
    pipeline = make_pipeline(database18)
    child = pipeline.start_streaming(**settings)
    pid = pipeline.slot_facts()["pid"]
    with watched_memory(child) as largest:
        database18.execute(ROWS.format(rows=rows))
        pipeline.wait_until_staged(pipeline.current_lsn())
        assert pipeline.slot_facts()["pid"] == pid, "the connection was lost"
        seen = largest()
    pipeline.finish(child)
    record_property("largest_rss_mb", seen // MB)
    print(f"{rows} rows: {seen // MB} MB")  # noqa: T201 - a figure worth seeing with -s.
    assert seen <= bound, f"{seen // MB} MB"
    require_one_transaction(pipeline.root, rows)
    assert not list(pipeline.spool.iterdir())


def require_one_transaction(root: Path, rows: int) -> None:
    """Fail unless staging holds the rows of one transaction, each once, in one commit."""
    require_whole_commits(root)
    table = DeltaTable(root / "staging" / "changes").to_pyarrow_table(
        columns=["seq", "commit_lsn", "op", "values"]
    )
    table = table.filter(pc.equal(table.column("op"), "insert")).sort_by("seq")
    assert table.column("seq").to_pylist() == list(range(rows))
    assert len(table.column("commit_lsn").unique()) == 1
    keys = pc.list_element(table.column("values"), 0).to_pylist()
    assert keys == [str(key) for key in range(1, rows + 1)]
