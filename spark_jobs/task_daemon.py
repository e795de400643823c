"""The process that Spark forks its Python workers from, here with what our tasks need loaded.

Each worker would load it for itself, in 0.4 s of CPU, and Spark ends those that rest for a minute.

Source: Spark, internal/config/Python.scala (`spark.python.daemon.module`).
"""

from __future__ import annotations

from pyspark.daemon import manager

import spark_jobs.typed_files  # noqa: F401 - Loaded, for the workers to have.

if __name__ == "__main__":
    manager()
