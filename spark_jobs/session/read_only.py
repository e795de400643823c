"""Refuses SQL statements that do more than read. Spark's parser judges before anything runs."""

from __future__ import annotations

import re
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from cdc_core.errors import ConfigurationError

_FIRST_WORD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*([A-Za-z]*)", re.DOTALL)
_POSITION = re.compile(r"\.?(?: SQLSTATE: \w+)?(?:; line \d+ pos \d+| \(line.*\))?[;.\s]*\Z")
_QUERIES = frozenset({"select", "with", "values", "table", "from"})
_DESCRIPTIONS = frozenset({"show", "describe", "desc", "explain"})
_COMMAND = "org.apache.spark.sql.catalyst.plans.logical.Command"
_PARSED_STATEMENT = "org.apache.spark.sql.catalyst.plans.logical.ParsedStatement"
_FIX = "give one statement that reads: SELECT, WITH, VALUES, SHOW, DESCRIBE or EXPLAIN"


def require_read_only(session: SparkSession, statement: str) -> None:
    """Refuse text that is not one statement, or that does more than read.

    Raises: ConfigurationError.
    """
    match = _FIRST_WORD.match(statement)
    word = match[1].lower() if match else ""
    if word not in _QUERIES | _DESCRIPTIONS:
        raise ConfigurationError([f"the statement begins with {word or 'no word'}"], fix=_FIX)
    plan = _parse(session, statement)
    # SHOW, DESCRIBE and EXPLAIN do not run what they name.
    if word in _QUERIES and (found := _find_command(session, plan)):
        raise ConfigurationError([f"the query does more than read: {found}"], fix=_FIX)


def explain_refusal(error: PySparkException) -> str:
    """Say in one line, without any value of a row, why Spark refused or failed."""
    if not isinstance(error, AnalysisException):
        return f"{error.getCondition() or type(error).__name__}, SQLSTATE {error.getSqlState()}"
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    # Spark puts names in backticks or double quotes, and literals in single quotes.
    return _POSITION.sub("", re.sub(r"'[^']*'", "'…'", line))


def _parse(session: SparkSession, statement: str) -> Any:  # noqa: ANN401 - an object of the JVM.
    try:
        # PySpark has no parser of its own.
        parser = session._jsparkSession.sessionState().sqlParser()  # noqa: SLF001 - as above.
        return parser.parsePlan(statement)
    except PySparkException as error:
        raise ConfigurationError([explain_refusal(error)], fix=_FIX) from error


def _find_command(session: SparkSession, plan: Any) -> str | None:  # noqa: ANN401 - as above.
    """Name a node of a plan that does more than read, or runs a program; None if no node does."""
    jvm = session._jvm  # noqa: SLF001 - nothing public reaches the parser.
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    acting = [loader.loadClass(name) for name in (_COMMAND, _PARSED_STATEMENT)]
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        name = str(node.getClass().getSimpleName())
        if name == "ScriptTransformation" or any(kind.isInstance(node) for kind in acting):
            return name
        children = node.children()
        waiting += [children.apply(index) for index in range(children.size())]
    return None
