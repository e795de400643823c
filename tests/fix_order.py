"""The order of a run: what needs no service first, then PostgreSQL and Redis, Spark, Dagster.

Run by several processes, one has all that uses the session's SparkSession, so that there is one;
another has all that runs under Dagster, where what starts a JVM is a process of its own.
"""

from __future__ import annotations

import pytest

SERVICE_FIXTURES = (
    {"postgres15", "postgres18", "private_postgres", "redis_process"},
    {"spark"},
    {"dagster", "start_dagster", "start_demo"},
)
_SPARK = 2


def pytest_itemcollected(item: pytest.Item) -> None:
    """Group what has a JVM, before the groups are dealt out."""
    if _cost(item) >= _SPARK:
        has_session = "spark" in getattr(item, "fixturenames", ())
        item.add_marker(pytest.mark.xdist_group("spark" if has_session else "dagster"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the dearest service a test needs; the order of files stays within each."""
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    names = set(getattr(item, "fixturenames", ()))
    if "postgres" in names:  # It asks for its servers by name, while the test is set up.
        names.add("postgres18")
    ranks = [rank for rank, fixtures in enumerate(SERVICE_FIXTURES, 1) if names & fixtures]
    return max(ranks, default=0)
