"""The session of a MERGE: the settings of another, and a bound that no other session has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.target import commits
from spark_jobs.target.commits import open_bound_session

SETTING = "spark.sql.shuffle.partitions"


def test_the_session_of_a_merge_has_the_settings_of_another_and_its_own_bound(
    spark: SparkSession,
) -> None:
    session = spark.newSession()
    session.conf.set(SETTING, "17")
    epoch: Any = SimpleNamespace(app="walgate:1:1")
    plans: list[Any] = [SimpleNamespace(upper=SimpleNamespace(lsn=lsn)) for lsn in (8, 16)]
    first, second = (open_bound_session(session, epoch, plan, {}) for plan in plans)
    assert first.conf.get(SETTING) == second.conf.get(SETTING) == "17"
    bounds = [one.conf.get(commits._TXN_VERSION, None) for one in (first, second, session)]
    assert bounds == ["8", "16", None]
