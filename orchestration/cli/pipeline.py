"""`walgate replicate` and `walgate merge`: run capture or a merge from a shell."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestration.cli.stop_signal import listen_for_stop
from orchestration.cli.table_names import parse_tables

if TYPE_CHECKING:
    from spark_jobs.merge.rounds import Round

_logger = logging.getLogger("walgate.merge")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("replicate")(replicate)
    app.command("merge")(merge)


def replicate(
    context: typer.Context,
    *,
    until_current: Annotated[
        bool,
        typer.Option("--until-current", help="Stage everything that is committed now, then end."),
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so many seconds.")] = None,
) -> None:
    """Stage the source's changes; Ctrl-C and SIGTERM drain."""
    from cdc_core.capture.loop import RunLimit
    from orchestration.capture.capture import capture

    settings = context.obj.load_settings()
    deadline = None if seconds is None else time.monotonic() + seconds
    with listen_for_stop() as stop:
        capture(settings, RunLimit(stop, until_current=until_current, deadline=deadline))


def merge(
    context: typer.Context,
    *,
    tables: Annotated[
        list[str] | None, typer.Option(help="Only these tables, as schema.name.")
    ] = None,
    is_following: Annotated[
        bool, typer.Option("--follow", help="Keep merging new changes until Ctrl-C.")
    ] = False,
) -> None:
    """Merge the log into the tables, in whole rounds, up to the LSN that is staged at the start."""
    from orchestration.runs.spark import open_spark
    from spark_jobs.lake.lake import Lake, require_epochs
    from spark_jobs.merge.rounds import follow

    settings = context.obj.load_settings()
    lake = Lake.of(settings)
    named = parse_tables(tables)
    chosen = {str(target) for table in named for target in lake.choose_targets(table)} or None
    require_epochs(lake)
    session = open_spark(settings)
    with listen_for_stop() as stop:
        follow(
            session,
            lake,
            round_rows=settings.merge.round_rows,
            linger_seconds=None if is_following else 0,
            stop=stop,
            tables=chosen,
            on_round=_log_round,
        )


def _log_round(done: Round) -> None:
    fields = {
        "cut": done.cut.lsn,
        "tables": len(done.tables),
        "entries": done.entries,
        "seconds": round(done.seconds, 2),
    }
    if done.waited_seconds is not None:
        fields["waited_seconds"] = round(done.waited_seconds, 2)
    _logger.info("round merged", extra={"fields": fields})
    for table, merged in done.tables.items():
        written = {
            "table": table,
            "way": merged.way,
            "inserted": merged.inserted,
            "updated": merged.updated,
            "deleted": merged.deleted,
            "seconds": round(merged.seconds, 2),
        }
        if merged.refusal is not None:
            written["refusal"] = merged.refusal
        _logger.info("table merged", extra={"fields": written})
    for table, halt in done.halted.items():
        halted = {"table": table, "reason": halt.reason, "fix": halt.fix}
        _logger.warning("table halted", extra={"fields": halted})
