"""A pipeline whose lake is in an object store, and whose Spark is a cluster of two workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import walgate
from cdc_core.lake_storage.object_place import ObjectPlace
from tests.fix_cluster import CLUSTER_CONF
from tests.fix_pipeline import Pipeline
from tests.fix_spark import TEST_CONF
from tests.postgres_server import Database
from tests.walgate_command import REPOSITORY, Answer, run_walgate

ROWS = 5_000


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_merges_and_verifications_run_on_a_cluster(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    object_lake: ObjectPlace,
    master: str,
    tmp_path: Path,
) -> None:
    database18.execute("create table orders (id bigint primary key, note text, paid numeric)")
    database18.execute(
        f"insert into orders select i, md5(i::text), i / 3.0 from generate_series(1, {ROWS}) i"
    )
    pipeline = make_pipeline(database18, lake=object_lake)
    conf = TEST_CONF | CLUSTER_CONF | {"spark.executorEnv.PYTHONPATH": str(REPOSITORY)}
    environment = {
        "WALGATE_SPARK__MASTER": master,
        "WALGATE_SPARK__CONF": json.dumps(conf),
        "PYSPARK_PYTHON": sys.executable,
    }

    def run(*arguments: str, exit_code: int = 0) -> Answer:
        answer = run_walgate(
            *arguments, folder=pipeline.folder, environment=environment, deadline_s=300.0
        )
        assert answer.exit_code == exit_code, answer
        return answer

    def verify(*options: str, exit_code: int = 0) -> str:
        (found,) = json.loads(run("verify", "--json", *options, exit_code=exit_code).stdout)[
            "tables"
        ]
        return str(found["result"])

    assert "spark_cluster" not in run("check").stdout
    run("backfill", "public.orders")
    run("merge")
    database18.execute("update orders set note = 'changed' where id % 10 = 0")
    database18.execute("delete from orders where id % 7 = 0")
    pipeline.catch_up()
    # The first one folds the changes, the second one reads what the merge has written.
    assert verify() == "equal"
    run("merge")
    assert verify() == "equal"
    lake = walgate.open(pipeline.folder / "walgate.toml")
    table = lake.at("latest").table("public.orders").to_arrow()
    expected = database18.query("select id, note from orders order by id")
    rows = sorted(zip(table["id"].to_pylist(), table["note"].to_pylist(), strict=True))
    assert rows == [tuple(row) for row in expected]
    # The check, each merge and each verification was an application of the cluster.
    assert (tmp_path / "cluster.log").read_text().count("Registered app") == 5


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_check_names_what_a_cluster_does_not_do(
    database18: Database, make_pipeline: Callable[..., Pipeline], master: str, tmp_path: Path
) -> None:
    pipeline = make_pipeline(database18)

    def find_problems(master: str, code: Path, **more: str) -> list[tuple[str, str]]:
        conf = TEST_CONF | CLUSTER_CONF | {"spark.executorEnv.PYTHONPATH": str(code)} | more
        environment = {
            "WALGATE_SPARK__MASTER": master,
            "WALGATE_SPARK__CONF": json.dumps(conf),
            "PYSPARK_PYTHON": sys.executable,
        }
        answer = run_walgate(
            "check", "--json", folder=pipeline.folder, environment=environment, deadline_s=400.0
        )
        problems = json.loads(answer.stdout)["problems"]
        found = [one for one in problems if one["code"] == "spark_cluster"]
        assert answer.exit_code == int(any(one["severity"] == "error" for one in problems))
        return [(one["severity"], f"{one['what']}: {one['found']}") for one in found]

    assert find_problems(master, REPOSITORY) == []
    for package in ("cdc_core", "spark_jobs"):
        (tmp_path / "code" / package).mkdir(parents=True)
        (tmp_path / "code" / package / "__init__.py").touch()
    ((severity, what),) = find_problems(master, tmp_path / "code")
    assert severity == "warning"
    assert "lack code of this program" in what
    greedy = {"spark.executor.memory": "9g"}
    ((severity, what),) = find_problems(master, REPOSITORY, **greedy)
    assert severity == "error"
    assert "no executor of the cluster takes a task" in what
    ((severity, what),) = find_problems("spark://127.0.0.1:1", REPOSITORY)
    assert severity == "error"
    assert "could not begin an application at its master spark://127.0.0.1:1" in what
