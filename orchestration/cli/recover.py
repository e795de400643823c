"""`walgate recover`: begins a new epoch after the slot, server or lake was lost or replaced."""

from __future__ import annotations

from typing import Annotated

import typer

_ANSWER_IS_NO = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("recover")(recover)


def recover(
    context: typer.Context,
    *,
    is_agreed: Annotated[
        bool, typer.Option("--yes", help="Take the steps; without this option, nothing is changed.")
    ] = False,
) -> int:
    """Show what stops capture and what to do; --yes does it. Exit 1 if something is left to do."""
    from orchestration.recovery import recover as recovery

    settings = context.obj.load_settings()
    plan = recovery.plan_recovery(settings)
    if not plan.breaks:
        typer.echo("nothing to recover: the slot and the server match the log")
        return 0
    typer.echo("found:")
    for what in plan.breaks:
        typer.echo(f"  {what}")
    if plan.costly is not None:
        typer.echo(f"note: {plan.costly}")
    if not is_agreed:
        typer.echo("to be done:")
        for number, step in enumerate(recovery.list_steps(settings, plan), 1):
            typer.echo(f"  {number}. {step}")
        for table in plan.left:
            typer.echo(f"  {table} is not published, so it cannot be read again: its rows stay")
        typer.echo(
            "Recovery drops no table and stops no reader: a table has its old rows until its"
        )
        typer.echo(
            "backfill is done. Nothing was changed; `walgate recover --yes` takes the steps."
        )
        return _ANSWER_IS_NO
    typer.echo("done:")
    for number, step in enumerate(recovery.recover(settings, plan), 1):
        typer.echo(f"  {number}. {step}")
    typer.echo("next: run `walgate up`, which reads the queued tables by itself, or run")
    typer.echo("`walgate backfill --all`")
    return 0
