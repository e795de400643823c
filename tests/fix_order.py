"""The order of a run: what needs no service first, then PostgreSQL and Redis, Spark, Dagster."""

from __future__ import annotations

import pytest

SERVICE_FIXTURES = (
    {"postgres15", "postgres18", "private_postgres", "redis_process"},
    {"spark"},
    {"dagster", "start_dagster", "start_demo"},
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort by the dearest service a test needs; the order of files stays within each."""
    items.sort(key=_cost)


def _cost(item: pytest.Item) -> int:
    names = set(getattr(item, "fixturenames", ()))
    if "postgres" in names:  # It asks for its servers by name, while the test is set up.
        names.add("postgres18")
    ranks = [rank for rank, fixtures in enumerate(SERVICE_FIXTURES, 1) if names & fixtures]
    return max(ranks, default=0)
