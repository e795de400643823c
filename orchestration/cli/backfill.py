"""`walgate backfill`: whole tables into the log, while the stream goes on."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_core.errors import ConfigurationError
from orchestration.cli.stop_signal import listen_for_stop
from orchestration.cli.table_names import parse_tables

if TYPE_CHECKING:
    from cdc_core.backfill.results import Progress
    from cdc_core.settings import Settings
    from cdc_core.vocabulary import TableName

_SAY_AGAIN_S = 5.0


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backfill")(backfill)


def backfill(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(help='Tables: public.orders, \'"Odd"."T"\'; none: all that may lack rows.'),
    ] = None,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Every published table.")] = False,
    chunk_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that are read at once; else [backfill] chunk_rows."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(min=1, help="Connections that read at a time; else [backfill] parallel."),
    ] = None,
) -> None:
    """Bring all rows of tables into the log, exactly; Ctrl-C and SIGTERM end it cleanly."""
    from orchestration.backfill import run_backfills

    settings = context.obj.load_settings()
    chosen = _choose_tables(settings, tables, is_all=is_all)
    if not chosen:
        typer.echo("no table waits for a backfill", err=True)
        return
    said = _Said()
    with listen_for_stop() as stop:
        done = run_backfills(
            settings,
            chosen,
            chunk_rows=chunk_rows or settings.backfill.chunk_rows,
            parallel=parallel or settings.backfill.parallel,
            stop=stop,
            on_progress=said.tell,
        )
    for table, progress in done.items():
        typer.echo(f"{table}\t{progress.rows}\t{progress.stale}")
    left = [str(table) for table in chosen if table not in done]
    if left:
        typer.echo(f"walgate: stopped; not done: {', '.join(left)}", err=True)
        raise typer.Exit(3)


class _Said:
    """Progress as lines, each table's now and then."""

    def __init__(self) -> None:
        self._at = 0.0

    def tell(self, table: TableName, progress: Progress) -> None:
        """Say how far a table has come."""
        now = time.monotonic()
        if now - self._at >= _SAY_AGAIN_S:
            self._at = now
            typer.echo(f"{table}: {progress.rows:,} rows in {progress.chunks} chunks", err=True)


def _choose_tables(settings: Settings, named: list[str] | None, *, is_all: bool) -> list[TableName]:
    from cdc_core.source.connection import open_connection
    from cdc_core.source.creation import list_keyed_tables
    from cdc_core.source.identity import list_published_tables
    from orchestration.backfill_queue import read_queue

    if named and is_all:
        raise ConfigurationError(
            ["both tables and --all are given"],
            fix="`walgate backfill public.orders`, or `walgate backfill --all`",
        )
    if named:
        return parse_tables(named)
    if not is_all:
        return [waiting.table for waiting in read_queue(settings)]
    source = settings.source
    with closing(open_connection(source, application_name="walgate backfill")) as connection:
        published = list_published_tables(connection, source.publication)
        keyed = set(list_keyed_tables(connection))
    for table in published:
        if table not in keyed:
            typer.echo(f"left out, without a key: {table}", err=True)
    return sorted(table for table in published if table in keyed)
