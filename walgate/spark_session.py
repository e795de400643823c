"""The Spark session that Walgate starts in a program of its user, and the errors of Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdc_core.errors import ConfigurationError, LakeError, Retry, WalgateError
from cdc_core.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Nothing needs Spark at a cut, so the functions import it.
# ruff: noqa: PLC0415

_LOCK = threading.Lock()
_opened: list[SparkSession] = []


def open_session(settings: Settings) -> SparkSession:
    """Open Walgate's session, or return it if it is open. Any thread may call this.

    Raises: ConfigurationError without Java, or if the program has started Spark itself: Walgate
    would change the settings of its session. WalgateError if Spark does not start or has ended.
    """
    from pyspark import SparkContext

    from orchestration.runs.spark import open_spark

    with _LOCK:
        running = SparkContext._active_spark_context  # noqa: SLF001 - PySpark has nothing public.
        if not any(session.sparkContext is running for session in _opened):
            if running is not None:
                raise ConfigurationError(
                    ["this process has a Spark session that Walgate did not start"],
                    fix="give it to to_spark(session), or read at a cut or in another process",
                )
            _opened[:] = [open_spark(settings, is_diverting=False)]
        gateway = SparkContext._gateway  # noqa: SLF001 - as above.
        if gateway is None or gateway.proc.poll() is not None:
            # PySpark starts no second JVM in a process.
            raise WalgateError(
                "Spark's JVM of this process has ended",
                fix="start the program again; if it ends again, the machine lacks memory, or"
                " [spark] driver_memory is too small",
                retry=Retry.LATER,
            )
        return _opened[0]


@contextmanager
def naming_spark_errors(table: str) -> Iterator[None]:
    """Turn the errors of Spark into errors of one line, without values of rows.

    Raises: LakeError.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from spark_jobs.session.read_only import explain_refusal

    try:
        yield
    except PySparkException as error:
        reason = explain_refusal(error)
    except (Py4JError, ConnectionError) as error:
        reason = type(error).__name__
    else:
        return
    # The text of Spark's own error may have values of rows.
    raise LakeError(
        f"Spark could not read {table}: {reason}",
        fix="read it again; if it fails again, check the lake's storage and Spark's memory",
        retry=Retry.LATER,
    ) from None
