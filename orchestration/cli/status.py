"""`walgate status`: shows how far each part of the pipeline has come, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from cdc_core.table_states import TableState

_NEEDS_ATTENTION = 1
_SOURCE_DOWN = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Show slot, lag, LSNs, halts and problems; exit 1 on an error, 3 if the source is down."""
    from orchestration.status.status import read_status

    answer = read_status(context.obj.load_settings())
    if as_json:
        typer.echo(json.dumps(answer, indent=2))
    else:
        for line in format_status(answer):
            typer.echo(line)
    if answer["source"] is None:
        return _SOURCE_DOWN
    return _NEEDS_ATTENTION if has_error(answer) else 0


def has_error(answer: dict[str, Any]) -> bool:
    """Whether a table is halted, or a problem is an error."""
    is_halted = any(table["state"] == TableState.HALTED for table in answer["tables"])
    return is_halted or any(problem["severity"] == "error" for problem in answer["problems"])


def format_status(answer: dict[str, Any]) -> Iterator[str]:
    """The lines of the answer for a person."""
    source, slot, capture, lake = (answer[k] for k in ("source", "slot", "capture", "lake"))
    if source is None:
        yield "source   down"
    else:
        yield f"source   PostgreSQL {source['server_version']} at {source['current_lsn']}"
        yield (
            f"slot     {slot['name']} {slot['state']}, confirmed"
            f" {_show(slot['confirmed_flush_lsn'])}, keeps {_show(slot['retained_bytes'])} of"
            f" {slot['budget_bytes']} bytes ({_show(slot['budget_used_percent'])} %),"
            f" {_show(slot['seconds_left'])} s left at the present rate"
        )
    yield (
        f"capture  {capture['state']}, staged {_show(capture['staged_lsn'])}, lag"
        f" {_show(capture['lag_bytes'])} bytes, {_show(capture['lag_seconds'])} s"
    )
    yield f"lake     {lake['root']}, cut {_show(lake['cut_lsn'])} of {_show(lake['cut_at'])}"
    space = answer["maintenance"]
    yield (
        f"space    {_show(space['bytes'])} bytes in {_show(space['files'])} files, readable from"
        f" {_show(space['oldest_lsn'])} on, maintained {_show(space['at'])}"
    )
    yield f"redis    {'up' if answer['redis']['up'] else 'down'}"
    width = max((len(table["table"]) for table in answer["tables"]), default=0)
    for table in answer["tables"]:
        reason = f": {table['reason']}; fix: {table['fix']}" if table["reason"] else ""
        merged, verified = _show(table["merged_lsn"]), _show(table["verified_lsn"])
        yield (
            f"table    {table['table']:{width}}  {table['state']}, merged {merged}, verified"
            f" {verified}{reason}"
        )
    for backfill in answer["backfills"]:
        yield (
            f"backfill {backfill['table']} {backfill['state']}, {backfill['rows']} of about"
            f" {_show(backfill['rows_estimated'])} rows in {backfill['chunks']} chunks,"
            f" {_show(backfill['remaining_seconds'])} s left"
        )
    for problem in answer["problems"]:
        yield f"{problem['severity']:8} {problem['code']}: {problem['what']}; fix: {problem['fix']}"


def _show(value: object) -> object:
    return "-" if value is None else value
