"""Log lines for people and machines: `time level noun verb key=value`, or the same as JSON.

A message begins with its noun and verb, `batch staged`; its details are in `extra={"fields": {…}}`.
A line has only the class of an exception, because its text may hold what a log must not contain.
`--debug` adds the traceback.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal

from orchestration.runs.failures import trace_failure

LogForm = Literal["logfmt", "json"]
# `walgate up` sets it, so that the processes which it starts use the same form.
FORM_VARIABLE = "WALGATE_LOG"

_OURS = ("cdc_core", "spark_jobs", "orchestration", "walgate")
# Libraries that read rows: what they log may quote the value of a row.
_READ_ROWS = ("psycopg", "py4j", "pyspark", "deltalake", "redis")
_PLAIN = re.compile(r"[^\s\"=]+\Z")


class LogLines(logging.Formatter):
    """Formats a record as one line; for debugging in logfmt, its traceback follows."""

    def __init__(self, form: LogForm, *, is_debug: bool) -> None:
        """Choose the form; `is_debug` adds tracebacks."""
        super().__init__()
        self._form = form
        self._is_debug = is_debug

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; JSON keeps a traceback in the same line."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        level = record.levelname.lower()
        fields = dict(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[0]:
            fields["error"] = record.exc_info[0].__name__
        message = record.getMessage()
        if not _is_ours(record.name):
            # The text of a library may hold anything, so the line has only its name and the level.
            message, fields = "library logged", {"logger": record.name} | fields
        noun, _, verb = message.partition(" ")
        error = record.exc_info[1] if self._is_debug and record.exc_info else None
        if self._form == "json":
            if error is not None:
                fields["traceback"] = trace_failure(error)
            return json.dumps(
                {"time": time, "level": level, "noun": noun, "verb": verb} | fields, default=str
            )
        pairs = [f"{key}={_quote(value)}" for key, value in fields.items()]
        line = " ".join([time, level, message, *pairs])
        return line if error is None else f"{line}\n{trace_failure(error)}"


@contextmanager
def logging_to_standard_error() -> Iterator[None]:
    """Send our log lines to standard error, in addition to the logging that the host has set up.

    Dagster keeps standard error and shows it on the page of the run. There lines have
    tracebacks. The form is that of `$WALGATE_LOG`, which `walgate up` sets from its own option.
    The host does not receive what libraries that read rows log. Standard error shows only that
    they logged something.
    """
    ours = logging.getLogger("walgate")
    libraries = [logging.getLogger(name) for name in _READ_ROWS]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(_read_form(os.environ), is_debug=True))
    propagated = [library.propagate for library in libraries]
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    for library in libraries:
        library.addHandler(handler)
        library.propagate = False
    try:
        yield
    finally:
        ours.removeHandler(handler)
        for library, was in zip(libraries, propagated, strict=True):
            library.removeHandler(handler)
            library.propagate = was


def start_logging(form: LogForm, *, is_debug: bool) -> None:
    """Send log lines to standard error: ours from INFO, those of libraries from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines(form, is_debug=is_debug))
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if is_debug else logging.INFO)


def _read_form(environ: Mapping[str, str]) -> LogForm:
    """The form that the environment asks for, else logfmt."""
    return "json" if environ.get(FORM_VARIABLE) == "json" else "logfmt"


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in _OURS


def _quote(value: object) -> str:
    text = str(value)
    return text if _PLAIN.match(text) else json.dumps(text, ensure_ascii=False)
