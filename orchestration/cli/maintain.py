"""`walgate maintain`: drops old cuts and removes the files that nobody reads any more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from cdc_core.staging.maintenance import MaintenanceReport


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("maintain")(maintain)


def maintain(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Maintain the lake once; exit 1 if it found a problem.

    Needs neither the source nor a JVM. Capture, merges and readers may run at the same time.
    """
    from orchestration.maintenance.maintenance import run_maintenance

    settings = context.obj.load_settings()
    report = run_maintenance(settings, tell=lambda line: typer.echo(f"maintain: {line}", err=True))
    if as_json:
        typer.echo(json.dumps(describe_report(report), indent=2))
    else:
        for line in format_report(report):
            typer.echo(line)
    return 1 if report.problems else 0


def describe_report(report: MaintenanceReport) -> dict[str, Any]:
    """The answer as JSON."""
    from cdc_core.vocabulary import format_time

    oldest, floor, at = report.oldest_cut, report.floor, report.oldest_cut_at
    return {
        "version": 1,
        "at": format_time(report.at, "seconds"),
        "seconds": round(report.seconds, 1),
        "cuts": report.cuts,
        "dropped_cuts": report.dropped_cuts,
        "oldest_lsn": None if oldest is None else str(oldest.lsn),
        "oldest_cut_at": None if at is None else format_time(at, "seconds"),
        "log_floor": None if floor is None else str(floor.lsn),
        "log_held_by": report.holder,
        "files": report.files,
        "needed_bytes": report.needed_bytes,
        "log_bytes": report.log_bytes,
        "young_bytes": report.young_bytes,
        "removed_files": report.removed_files,
        "removed_bytes": report.removed_bytes,
        "compacted_tables": report.compacted_tables,
        "problems": [*report.problems],
    }


def format_report(report: MaintenanceReport) -> list[str]:
    """The answer as lines for a person."""
    from cdc_core.quantities import format_size
    from cdc_core.vocabulary import format_time

    at, oldest, floor = report.oldest_cut_at, report.oldest_cut, report.floor
    lines = [f"cuts      {report.cuts} kept, {report.dropped_cuts} dropped"]
    if oldest is not None and at is not None:
        lines.append(f"readable  from {oldest.lsn} on, the cut of {format_time(at, 'seconds')}")
    if floor is not None:
        lines.append(f"log       capture may trim it through {floor.lsn}; held by {report.holder}")
    needed, log, young = map(
        format_size, (report.needed_bytes, report.log_bytes, report.young_bytes)
    )
    lines.append(f"space     {needed} of tables and ledgers, {log} of the log")
    lines.append(f"          {young} go after the grace; {report.files} files in all")
    size = format_size(report.removed_bytes)
    lines.append(f"removed   {report.removed_files} files, {size}")
    lines.append(f"compacted {report.compacted_tables} tables")
    return [*lines, *(f"problem   {problem}" for problem in report.problems)]
