"""The Spark session of a command: which Java and which Delta JARs it starts with.

`make setup` keeps both in `.walgate`, beside the configuration or in the checkout; nothing is then
taken from the network.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from cdc_core.errors import ConfigurationError
from spark_jobs.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc_core.settings import Settings

_CHECKOUT_STATE = Path(__file__).resolve().parent.parent / ".walgate"


def open_spark(settings: Settings) -> SparkSession:
    """Open the session of this process. Raises: ConfigurationError without Java."""
    folders = (settings.state_folder, _CHECKOUT_STATE)
    if "JAVA_HOME" not in os.environ:
        java = next((f / "java" for f in folders if (f / "java" / "bin" / "java").exists()), None)
        if java is not None:
            os.environ["JAVA_HOME"] = str(java)
        elif shutil.which("java") is None:
            raise ConfigurationError(
                ["no Java: expected 17 or 21 in JAVA_HOME or on PATH, found none"],
                fix="run `make setup`, or install Java 17 or 21 and set JAVA_HOME",
            )
    jars = next((f / "jars" for f in folders if any((f / "jars").glob("*.jar"))), None)
    return open_session(settings.spark, jars_folder=jars)
