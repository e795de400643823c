"""The Spark session that Walgate starts in a program of its user."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from cdc_core.errors import ConfigurationError
from cdc_core.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCK = threading.Lock()
_opened: list[SparkSession] = []


def open_session(settings: Settings) -> SparkSession:
    """Open Walgate's session, or return it if it is open. Any thread may call this.

    Raises: ConfigurationError without Java, or if another program of this process has started
    Spark: Walgate would change the settings of its session. WalgateError if Spark does not start.
    """
    from pyspark import SparkContext  # noqa: PLC0415 - at a cut nothing needs it.

    from orchestration.runs.spark import open_spark  # noqa: PLC0415 - as above.

    with _LOCK:
        running = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has nothing public.
        if not any(session.sparkContext is running for session in _opened):
            if running is not None:
                raise ConfigurationError(
                    ["this process has a Spark session that Walgate did not start"],
                    fix="give it to to_spark(session), or read at a cut or in another process",
                )
            _opened[:] = [open_spark(settings)]
        return _opened[0]
