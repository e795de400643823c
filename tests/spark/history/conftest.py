"""A small lake whose tables also have a history."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.history.versions import (
    HISTORY,
)
from tests.spark.small_lake import SmallLake


@pytest.fixture
def small(spark: SparkSession, tmp_path: Path) -> SmallLake:
    """Lend a lake whose tables also have a history."""
    made = SmallLake(spark, tmp_path)
    made.lake = replace(made.lake, rules={"*.*": HISTORY})
    return made
