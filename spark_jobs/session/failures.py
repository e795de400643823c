"""Keeps the failure of one table apart, so that the merge goes on with the other tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from cdc_core.errors import MergeError, Retry
from cdc_core.targets import Target
from spark_jobs.lake.damaged_tables import UnreadableTable, find_torn
from spark_jobs.lake.lake import Lake
from spark_jobs.session.read_only import explain_refusal

_Failure: TypeAlias = (
    PySparkException | Py4JJavaError | DeltaError | pa.ArrowException | OSError | UnreadableTable
)
_FAILURES = (
    *(PySparkException, Py4JJavaError, DeltaError),
    *(pa.ArrowException, OSError, UnreadableTable),
)

_logger = logging.getLogger("walgate.merge")


class Failures:
    """The failures of one round, by table."""

    def __init__(self, lake: Lake) -> None:
        """Nothing has failed yet."""
        self._lake = lake
        self._errors: dict[str, _Failure] = {}

    @contextmanager
    def apart(self, table: str) -> Iterator[None]:
        """Run a block about one table, and record an error of data or storage without raising it.

        Raises: every other error, also a ConnectionError.
        """
        try:
            yield
        except ConnectionError:
            # Spark's JVM is gone, so no table can be merged.
            raise
        except _FAILURES as error:
            torn = find_torn(self._lake.locate_target(Target.parse(table)))
            self._errors[table] = error if torn is None else torn
            fields = {"table": table, "reason": explain(self._errors[table])}
            _logger.warning("merge of a table failed", extra={"fields": fields})

    def require_none(self) -> None:
        """Check that no table has failed. Raises: MergeError, which names each failed table."""
        if not self._errors:
            return
        said = "; ".join(f"{table}: {explain(error)}" for table, error in self._errors.items())
        raise MergeError(
            f"some tables could not be merged: {said}",
            fix="correct the cause that is named for each table; the next merge tries these tables"
            " again, and the other tables go on; if a table's own files are damaged, delete its"
            " folder: the next merge builds the table again",
            retry=Retry.LATER,
        ) from next(iter(self._errors.values()))


def explain(error: _Failure) -> str:
    """Say what happened without row values, which Spark's own message may have."""
    if isinstance(error, UnreadableTable):
        return f"{error.message}; {error.fix}"
    if isinstance(error, PySparkException):
        return explain_refusal(error)
    if not isinstance(error, Py4JJavaError):
        return type(error).__name__
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getClass().getSimpleName())
