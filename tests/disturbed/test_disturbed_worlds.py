"""After disturbances a table is right, or something names it and a whole read makes it right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession

from tests.disturbed.world import DisturbedWorld
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.fix_spark import make_quick

# Seed, version of the server, tables. In soak 500 tables, with both versions in turn.
SAMPLE = ((0, 18, 5),)
SOAK = tuple((seed, (15, 18)[seed % 2], 10) for seed in range(200, 250))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("seed", "version", "tables"),
    [*SAMPLE, *(pytest.param(*world, marks=pytest.mark.soak) for world in SOAK)],
)
def test_a_disturbed_table_is_right_or_named_and_right_once_it_was_read_whole(
    spark: SparkSession,
    make_pipeline: Callable[..., Pipeline],
    request: pytest.FixtureRequest,
    seed: int,
    version: int,
    tables: int,
) -> None:
    with lend_database(request.getfixturevalue(f"postgres{version}")) as database:
        world = DisturbedWorld(seed, tables, database, make_pipeline, make_quick(spark))
        try:
            world.live_disturbed()
            assert not world.wrong, "\n".join(world.wrong)
        finally:
            world.source.close()
            world.pipeline.end()
