"""A whole pipeline whose lake is in an object store: the same commands, and the same answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import walgate
from cdc_core.lake_storage.object_place import ObjectPlace
from tests.fix_pipeline import Pipeline
from tests.fix_spark import TEST_CONF
from tests.postgres_server import Database
from tests.walgate_command import Answer, run_walgate

ROWS = 500


@pytest.mark.core
@pytest.mark.timeout(900)
def test_a_lake_in_a_store_is_captured_backfilled_merged_verified_and_read(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    object_lake: ObjectPlace,
    tmp_path: Path,
) -> None:
    database18.execute("create table orders (id bigint primary key, note text, paid numeric)")
    database18.execute(
        f"insert into orders select i, md5(i::text), i / 3.0 from generate_series(1, {ROWS}) i"
    )
    pipeline = make_pipeline(database18, lake=object_lake)

    # Where Hadoop would buffer what Spark writes.
    buffers = tmp_path / "buffers"
    conf = TEST_CONF | {"spark.hadoop.hadoop.tmp.dir": str(buffers)}
    environment = {"WALGATE_SPARK__CONF": json.dumps(conf)}

    def run(*arguments: str) -> Answer:
        answer = run_walgate(*arguments, folder=pipeline.folder, environment=environment)
        assert answer.exit_code == 0, answer
        return answer

    assert "lake_store" not in run("check").stdout
    run("backfill", "public.orders")
    database18.execute("update orders set note = 'changed' where id % 10 = 0")
    database18.execute("delete from orders where id % 7 = 0")
    pipeline.catch_up()
    run("merge")
    expected = database18.query("select id, note, paid::text from orders order by id")
    lake = walgate.open(pipeline.folder / "walgate.toml")
    table = lake.at("latest").table("public.orders").to_arrow()
    rows = sorted(zip(*(table[name].to_pylist() for name in ("id", "note", "paid")), strict=True))
    assert [(key, note) for key, note, _ in rows] == [(key, note) for key, note, _ in expected]
    verified = json.loads(run("verify", "--json").stdout)
    assert {one["table"]: one["result"] for one in verified["tables"]} == {"public.orders": "equal"}
    run("maintain")
    counted = run("sql", "select count(*) from public.orders").stdout
    assert str(len(expected)) in counted
    status = json.loads(run("status", "--json").stdout)
    assert status["lake"]["root"] == str(object_lake)
    assert not (pipeline.folder / "lake").exists(), "nothing of the lake is on this host"
    assert not buffers.exists(), "rows lie in files that everybody can read"
