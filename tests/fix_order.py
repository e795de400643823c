"""The order of a run: what needs no service first, then PostgreSQL and Redis, Spark, Dagster.

Run by several processes, two have a SparkSession each, and share the tests that use one: those of
`tests/spark` and those of the other folders. Another has all that runs under Dagster, where what
starts a JVM is a process of its own.
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
        item.add_marker(pytest.mark.xdist_group(_choose_group(item)))


def _choose_group(item: pytest.Item) -> str:
    if "spark" not in getattr(item, "fixturenames", ()):
        return "dagster"
    return "spark" if item.path.parent.name == "spark" else "spark_beside"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the dearest service a test needs; the order of files stays within each."""
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    names = set(getattr(item, "fixturenames", ()))
    if "postgres" in names:  # It asks for its servers by name, while the test is set up.
        names.add("postgres18")
    ranks = [rank for rank, fixtures in enumerate(SERVICE_FIXTURES, 1) if names & fixtures]
    return max(ranks, default=0)
