"""The command `walgate`: the options that all commands share, errors as lines, exit codes.

Each command imports what it needs when it runs, so that `--help` loads no driver and starts no JVM.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli import (
    backfill,
    check,
    demo,
    init,
    maintain,
    pipeline,
    publish,
    query,
    rebuild,
    recover,
    status,
    up,
    verify,
)
from orchestration.cli.context import Context
from orchestration.runs.failures import explain_failure, trace_failure
from orchestration.runs.log_lines import start_logging

app = typer.Typer(
    name="walgate",
    help="Replicate PostgreSQL into Delta Lake tables, every change exactly once.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
init.register(app)
check.register(app)
publish.register(app)
pipeline.register(app)
backfill.register(app)
status.register(app)
recover.register(app)
query.register(app)
verify.register(app)
maintain.register(app)
rebuild.register(app)
up.register(app)
demo.register(app)


class _LogForm(StrEnum):
    LOGFMT = "logfmt"
    JSON = "json"


@app.callback()
def _remember_options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(help="Configuration; default: $WALGATE_CONFIG, or ./walgate.toml."),
    ] = None,
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    log: Annotated[_LogForm, typer.Option(help="Form of log lines.")] = _LogForm.LOGFMT,
) -> None:
    start_logging(log.value, is_debug=debug)
    context.obj = Context(config, log.value)


def main() -> None:
    """Run one command and end the process with its exit code.

    Arrow's threads outlive a scan by a moment. If Python tears down the interpreter then, they
    abort it (apache/arrow#39862), and a correct answer ends with SIGABRT. So this does not tear it
    down.
    """
    code = run_command(sys.argv[1:])
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # The reader closed it, or `run_command`.
            stream.flush()
    os._exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command; return its exit code. A failure is a line for each problem, on stderr."""
    hoisted = hoist_options(arguments)
    try:
        code = app(hoisted or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, SystemExit):  # The parser exits only for a closed pipe.
        sys.stderr.close()
        return 0
    except BaseException as error:  # noqa: BLE001 - nothing may end as a traceback.
        failure = explain_failure(error)
        for line in failure.lines:
            typer.echo(f"walgate: {line}", err=True)
        if "--debug" in hoisted:
            typer.echo(trace_failure(error), err=True)
        return failure.exit_code
    return code if isinstance(code, int) else 0


def hoist_options(arguments: Iterable[str]) -> list[str]:
    """Move the options that all commands share to the front."""
    front: list[str] = []
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        if argument == "--":
            rest += [argument, *remaining]
        elif argument == "--debug" or argument.startswith(("--config=", "--log=")):
            front.append(argument)
        elif argument in {"--config", "--log"}:
            front += [argument, *islice(remaining, 1)]
        else:
            rest.append(argument)
    return front + rest


if __name__ == "__main__":
    main()
