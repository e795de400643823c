"""The process from which Spark forks its Python workers, with the modules of our tasks loaded.

Without it, each worker loads them itself, in 0.4 s of CPU. Spark ends workers idle for a minute.

Source: Spark, internal/config/Python.scala (`spark.python.daemon.module`).
"""

from __future__ import annotations

from pyspark.daemon import manager

# The workers inherit the loaded modules.
import spark_jobs.fast_path.arrow_copy_task
import spark_jobs.fast_path.rewrite_task  # noqa: F401

if __name__ == "__main__":
    manager()
