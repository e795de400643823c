"""The SparkSession of a run, as a resource from dagster-pyspark."""

from __future__ import annotations

from dagster_pyspark import LazyPySparkResource

from cdc_core.settings import Settings
from orchestration.runs.spark import open_spark


def make_spark_resource(settings: Settings) -> LazyPySparkResource:
    """The run's session, opened on the thread that first asks for it.

    On the main thread, PySpark would replace Dagster's interrupt handler by its own, and a
    cancelled run would not drain. `[spark]` may hold secrets, and Dagster shows the configuration
    of resources, so this resource has none of it.
    """

    class Spark(LazyPySparkResource):
        """The SparkSession of the run."""

        def _init_session(self) -> None:
            if self._spark_session is None:
                self._spark_session = open_spark(settings)

    return Spark(spark_config={})
