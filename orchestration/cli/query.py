"""`walgate sql`: a query over the lake, with every table read at one LSN."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated

import typer

from cdc_core.errors import ConfigurationError, LakeError, Retry
from cdc_core.read_point import ReadPoint, parse_read_point

_logger = logging.getLogger("walgate.sql")
# Classes of SQLSTATE that the statement or the data causes: 21 cardinality, 22 values.
_WRONG_QUERY = ("21", "22")


class RowForm(StrEnum):
    """The form in which rows are printed."""

    TABLE = "table"
    TSV = "tsv"
    CSV = "csv"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sql")(sql)


def sql(
    context: typer.Context,
    statement: Annotated[str, typer.Argument(help="One SQL statement that only reads.")],
    *,
    at: Annotated[
        str, typer.Option(help="latest (the newest cut), live (all staged), an LSN or a time.")
    ] = "latest",
    form: Annotated[
        RowForm | None,
        typer.Option("--format", help="Default: table on a terminal, tsv otherwise."),
    ] = None,
) -> None:
    """Run Spark SQL over the lake: name `schema.table`, or `table` alone if it is in public."""
    point = _parse_read_point(at)
    chosen = form or (RowForm.TABLE if sys.stdout.isatty() else RowForm.TSV)
    settings = context.obj.load_settings()
    from orchestration.cli.row_lines import write_rows
    from orchestration.runs.spark import open_spark
    from spark_jobs.lake.lake import Lake
    from spark_jobs.lake.leases import holding_lease
    from spark_jobs.query.read_bound import find_bound_at
    from spark_jobs.query.sql import answer_query
    from spark_jobs.session.read_only import require_read_only

    lake = Lake.of(settings)
    bound = find_bound_at(lake, point)
    with holding_lease(lake, bound):
        session = open_spark(settings)
        require_read_only(session, statement)
        with _query_errors():
            answer = answer_query(session, lake, statement, bound)
            for table, (through, halt) in answer.halted.items():
                halted = {"table": table, "through": through.lsn, "reason": halt.reason}
                _logger.warning("table halted", extra={"fields": halted | {"fix": halt.fix}})
            for table, incomplete in answer.lacking.items():
                partial = {"table": table, "state": incomplete.state, "reason": incomplete.reason}
                _logger.warning("table partial", extra={"fields": partial})
            write_rows(answer.rows, chosen.value, sys.stdout)


def _parse_read_point(at: str) -> ReadPoint:
    try:
        return parse_read_point(at)
    except ValueError as error:
        raise ConfigurationError([f"--at {error}"], fix="give one of these forms") from error


@contextmanager
def _query_errors() -> Iterator[None]:
    """Turn Spark's errors into errors of one line, without values of rows.

    Raises: ConfigurationError if the query is wrong, else LakeError.
    """
    from pyspark.errors import AnalysisException, PySparkException

    from spark_jobs.session.read_only import explain_refusal

    try:
        yield
    except PySparkException as error:
        is_wrong = (error.getSqlState() or "").startswith(_WRONG_QUERY)
        if isinstance(error, AnalysisException) or is_wrong:
            raise ConfigurationError([explain_refusal(error)], fix="correct the query") from error
        raise LakeError(
            f"the query failed: {explain_refusal(error)}",
            fix="run the query again; if it fails again, check the lake's storage",
            retry=Retry.LATER,
        ) from error
