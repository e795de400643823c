"""What runs share: one SparkSession, from dagster-pyspark."""

from __future__ import annotations

from dagster_pyspark import LazyPySparkResource

from cdc_core.settings import Settings
from orchestration.spark import open_spark


def make_spark_resource(settings: Settings) -> LazyPySparkResource:
    """The run's session, opened on the thread that first asks for it.

    A session made on the main thread would put PySpark's own interrupt handler in the place of
    Dagster's, and a cancelled run would not drain. What is in `[spark]` may be secret, and Dagster
    shows the configuration of resources: so it is none of this one's.
    """

    class Spark(LazyPySparkResource):
        """The SparkSession of the run."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                self._spark_session = open_spark(settings)

    return Spark(spark_config={})
