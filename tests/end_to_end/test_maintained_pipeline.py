"""A pipeline under load that is maintained twice at once, as aggressively as its grace allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import walgate
from cdc_core.errors import LakeError
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.log.files import LogFiles
from spark_jobs.maintenance.thinning import Keeping
from spark_jobs.merge.rounds import Round, merge_until
from tests.end_to_end.pgbench_tables import KEYS, read_lake, read_source
from tests.fix_pipeline import Pipeline
from tests.load import prepare, running_load
from tests.postgres_server import Database
from tests.spark.maintenance.maintained_lake import Keeper
from tests.walgate_command import run_walgate

SECONDS, TRIMS = 400, 3
# A round of these tables takes a second or two. Its files must stay for longer than that.
SHORT = Keeping(
    retention=timedelta(seconds=4),
    grace=timedelta(seconds=20),
    every_cut=timedelta(seconds=2),
    often=timedelta(seconds=3),
    often_interval=timedelta(seconds=1),
    seldom_interval=timedelta(seconds=1),
)
BALANCES = {
    "pgbench_accounts": "abalance",
    "pgbench_tellers": "tbalance",
    "pgbench_branches": "bbalance",
}


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_doubled_while_everything_that_may_go_goes(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    scripts = prepare(database18, tmp_path)
    pipeline = make_pipeline(database18)
    lake = Lake(pipeline.lake)
    answer = run_walgate("backfill", *(f"public.{t}" for t in KEYS), folder=pipeline.folder)
    assert answer.exit_code == 0, answer.stderr
    environment = {"WALGATE_LAKE__GRACE": "60s", "WALGATE_CAPTURE__BATCH_SECONDS": "0.1"}
    capture = pipeline.start_streaming(**environment)
    session = spark.newSession()
    trims: set[Bound] = set()
    compared: list[bool] = []

    def compare(_: Round) -> None:
        compared.append(compare_balances(pipeline.folder / "walgate.toml"))

    deadline = time.monotonic() + SECONDS
    with (
        running_load(database18, scripts, seed=20261126, rate=60),
        maintaining(lake, pipeline.folder),
        maintaining(lake, pipeline.folder),
    ):
        while len(trims) < TRIMS:
            assert time.monotonic() < deadline, f"trimmed only {len(trims)} times"
            merge_until(session, lake, round_rows=20_000, on_round=compare)
            log = LogFiles.open(lake)
            assert log is not None
            if log.trimmed is not None and log.trimmed not in trims:
                trims.add(log.trimmed)
                # The next capture begins with a replay after a trim.
                capture.kill()
                capture = pipeline.start_streaming(**environment)
    pipeline.finish(capture)
    assert sum(compared) > 20
    pipeline.catch_up()
    merge_until(session, lake, round_rows=2_000_000)
    for table, key in KEYS.items():
        assert read_lake(session, lake, table, key).equals(read_source(database18, table, key))


@contextmanager
def maintaining(lake: Lake, folder: Path) -> Iterator[None]:
    """Maintain a lake all the time while a block runs. Raises what a maintenance raised."""
    is_over, failures = threading.Event(), list[BaseException]()

    def work() -> None:
        keeper = Keeper(lake, folder / "no spool")
        while not is_over.is_set():
            try:
                keeper.maintain(SHORT)
            except BaseException as error:  # noqa: BLE001 - The block raises it.
                failures.append(error)
                return
            is_over.wait(0.5)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    if failures:
        raise failures[0]


def compare_balances(config: Path) -> bool:
    """Read three tables at the newest cut: each transaction adds the same to all of them."""
    try:
        now = walgate.open(config).at("latest")
        tables = {name: now.table(f"public.{name}") for name in BALANCES}
    except LakeError:
        return False
    if any(table.needs_spark or table.incomplete for table in tables.values()):
        return False
    sums = {pc.sum(table.to_arrow()[BALANCES[name]]).as_py() or 0 for name, table in tables.items()}
    assert len(sums) == 1, sums
    return True
