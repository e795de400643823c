"""`walgate verify`: compares the lake with the source, both at one LSN."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from orchestration.cli.stop_signal import listen_for_stop
from orchestration.cli.table_names import parse_tables

_DIFFERENT = 1
_ERASE_LINE = "\r\x1b[K"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("verify")(verify)


def verify(
    context: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Argument(help="Tables: public.orders; default: all.")
    ] = None,
    *,
    heal: Annotated[
        bool, typer.Option("--heal", help="Read the rows that differ again, then compare again.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Compare every row and value with the source, both at one LSN; exit 1 on a difference."""
    from cdc_core.staging.verifications import DIFFERENT
    from orchestration.runs.spark import open_spark
    from orchestration.verification.answer import describe_verdict, format_verdict
    from orchestration.verification.healing import verify_and_heal
    from spark_jobs.lake.lake import Lake, require_epochs

    settings = context.obj.load_settings()
    named = parse_tables(tables)
    require_epochs(Lake.of(settings))
    session = open_spark(settings)
    line = ProgressLine()
    with listen_for_stop() as stop:
        verdict = verify_and_heal(
            settings, session, named or None, is_healing=heal, stop=stop, tell=line.tell
        )
    line.erase()
    if as_json:
        typer.echo(json.dumps(describe_verdict(verdict), indent=2))
    else:
        for text in format_verdict(verdict):
            typer.echo(text)
    return _DIFFERENT if any(found.result == DIFFERENT for found in verdict.tables) else 0


class ProgressLine:
    """Shows what the command does now: one changing line on a terminal, else lines."""

    def __init__(self) -> None:
        """Nothing is shown yet."""
        self._is_terminal = sys.stderr.isatty()

    def tell(self, doing: str) -> None:
        """Show what the command does now."""
        if self._is_terminal:
            sys.stderr.write(f"{_ERASE_LINE}{doing}")
            sys.stderr.flush()
        else:
            typer.echo(f"verify: {doing}", err=True)

    def erase(self) -> None:
        """Erase the line from a terminal."""
        if self._is_terminal:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()
