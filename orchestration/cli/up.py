"""`walgate up`: runs Dagster for the pipeline, with its page on loopback, until it is stopped."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import typer

from orchestration.cli.stop_signal import listen_for_stop

if TYPE_CHECKING:
    from cdc_core.settings import Settings
    from orchestration.stack.dagster_stack import DagsterStack


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("up")(up)


def up(context: typer.Context) -> None:
    """Run replication and merges under Dagster, with its page; Ctrl-C, SIGTERM and SIGHUP drain."""
    from orchestration.stack.dagster_stack import run_dagster

    settings = context.obj.load_settings()
    config = context.obj.find_config()
    hurry = threading.Event()
    with listen_for_stop(again=hurry.set, is_hang_up_stop=True) as stop:
        typer.echo("starting Dagster, which takes up to a minute …")
        with run_dagster(
            settings, config=config, log=context.obj.log, stop=stop, hurry=hurry
        ) as dagster:
            if not stop.is_set():
                for line in _describe(settings, dagster):
                    typer.echo(line)
            stop.wait()
            typer.echo("stopping: runs drain first; press Ctrl-C again to stop without waiting")
    typer.echo("stopped; nothing is left running, and the next `walgate up` goes on from here")


def _describe(settings: Settings, dagster: DagsterStack) -> list[str]:
    """Lines on where the page is, what runs by itself, where things are and how to stop."""
    running = (
        "sensors keep_replicating, backfill_queued_tables and merge_staged_changes launch the runs"
        if settings.dagster.autostart
        else "nothing by itself: [dagster] autostart is false; start the sensors on the page"
    )
    return [
        f"page     {dagster.url}",
        f"source   slot {settings.source.slot}",
        f"lake     {settings.lake.root}",
        f"runs     {running}",
        f"history  {settings.dagster.home}",
        f"logs     {dagster.logs}",
        "stop     Ctrl-C, SIGTERM or SIGHUP",
    ]
