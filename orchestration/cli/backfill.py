"""`walgate backfill`: reads tables into the log while the stream goes on; pause, resume, cancel."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc_core.errors import ConfigurationError
from orchestration.cli.backfill_bar import showing_progress
from orchestration.cli.stop_signal import listen_for_stop
from orchestration.cli.table_names import parse_tables

if TYPE_CHECKING:
    from cdc_core.settings import Settings
    from cdc_core.spooled import Scope
    from cdc_core.vocabulary import TableName

_ORDERS = ("pause", "resume", "cancel")
_NOTHING_UNDER_WAY = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backfill")(backfill)


def backfill(
    context: typer.Context,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help='Tables: public.orders, \'"Odd"."T"\'; default: all that may lack rows. Before the'
            " tables, pause, resume or cancel controls their unfinished backfills."
        ),
    ] = None,
    *,
    is_all: Annotated[bool, typer.Option("--all", help="Every published table.")] = False,
    low: Annotated[
        list[str] | None,
        typer.Option("--from", help="First key to read; once for each column of the key."),
    ] = None,
    high: Annotated[
        list[str] | None,
        typer.Option("--to", help="Last key to read; once for each column of the key."),
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(help="Read only rows that meet this SQL condition; remove no rows."),
    ] = None,
    chunk_rows: Annotated[
        int | None,
        typer.Option(min=1, help="The most rows of a chunk; default: [backfill] chunk_rows."),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            min=1, help="The most connections that read at a time; default: [backfill] parallel."
        ),
    ] = None,
    is_dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only estimate rows, bytes, chunks and minutes."),
    ] = False,
    is_anew: Annotated[
        bool, typer.Option("--anew", help="Begin an unfinished backfill again; else resume it.")
    ] = False,
) -> None:
    """Read rows of tables into the log; Ctrl-C and SIGTERM end the command cleanly."""
    from cdc_core.spooled import Scope as PartOfTable
    from orchestration.backfill.backfill import run_backfills

    settings = context.obj.load_settings()
    if tables and tables[0] in _ORDERS:
        options = (low, high, where, chunk_rows, parallel, is_anew or None, is_dry_run or None)
        _give_order(settings, tables[0], tables[1:], is_all=is_all, options=options)
        return
    scope = PartOfTable(tuple(low) if low else None, tuple(high) if high else None, where)
    if not scope.is_whole:
        _require_either(tables, is_all=is_all)
    chosen = _choose_tables(settings, tables, is_all=is_all)
    if not chosen:
        typer.echo("no table waits for a backfill", err=True)
        return
    if len(chosen) > 1 and not scope.is_whole:
        raise ConfigurationError(
            [f"--from, --to and --where are given for {len(chosen)} tables, expected one"],
            fix="give one table",
        )
    if is_dry_run:
        _tell_estimates(
            settings,
            chosen,
            scope,
            chunk_rows=chunk_rows or settings.backfill.chunk_rows,
            parallel=parallel or settings.backfill.parallel,
        )
        return
    with listen_for_stop() as stop, showing_progress() as tell:
        done = run_backfills(
            settings,
            chosen,
            chunk_rows=chunk_rows or settings.backfill.chunk_rows,
            parallel=parallel or settings.backfill.parallel,
            stop=stop,
            on_progress=tell,
            scope=scope,
            is_anew=is_anew,
        )
    for table, progress in done.items():
        typer.echo(f"{table}\t{progress.rows}\t{progress.stale}")
        if progress.unswept is not None:
            kept = "backfill does not remove rows that the source deleted"
            typer.echo(f"{table}: {kept}: {progress.unswept}", err=True)
    left = [str(table) for table in chosen if table not in done]
    if left:
        typer.echo(f"walgate: stopped; not done: {', '.join(left)}", err=True)
        raise typer.Exit(3)


def _tell_estimates(
    settings: Settings, tables: list[TableName], scope: Scope, *, chunk_rows: int, parallel: int
) -> None:
    """Print the estimated rows, bytes, chunks and minutes of each table."""
    from cdc_core.backfill.estimates import estimate
    from orchestration.backfill.backfill import make_request

    for table in tables:
        wanted = make_request(settings, table, chunk_rows=chunk_rows, scope=scope)
        rate = settings.backfill.rows_per_second
        found = estimate(wanted, parallel=parallel, rows_per_second=rate)
        minutes = f"{found.seconds / 60:.2f}"
        typer.echo(f"{table}\t{found.rows}\t{found.size}\t{found.chunks}\t{minutes}")
        if found.unswept is not None:
            kept = "backfill would not remove rows that the source deleted"
            typer.echo(f"{table}: {kept}: {found.unswept}", err=True)
        if found.costly is not None:
            typer.echo(f"{table}: {found.costly}", err=True)


def _give_order(
    settings: Settings, name: str, named: list[str], *, is_all: bool, options: tuple[Any, ...]
) -> None:
    from orchestration.backfill.orders import Order, give_order

    order = Order(name)
    if any(option is not None for option in options):
        raise ConfigurationError(
            [f"`walgate backfill {order}` takes tables or --all, and no other option"],
            fix=f"`walgate backfill {order} public.orders`",
        )
    _require_either(named, is_all=is_all, before=f"{order} ")
    chosen = None if is_all else parse_tables(named)
    given = give_order(settings.lake, order, chosen)
    for one in given:
        typer.echo(f"{one.table}\t{one.state}")
        if one.note is not None:
            typer.echo(f"{one.table}: {one.note}", err=True)
    without = [table for table in chosen or () if all(one.table != table for one in given)]
    if without or not given:
        listed = " of " + ", ".join(map(str, without)) if without else ""
        typer.echo(f"walgate: there is no unfinished backfill{listed} to {order}", err=True)
        raise typer.Exit(_NOTHING_UNDER_WAY)


def _require_either(named: list[str] | None, *, is_all: bool, before: str = "") -> None:
    if bool(named) == is_all:
        raise ConfigurationError(
            [f"expected tables or --all, found {'both' if named else 'neither'}"],
            fix=f"`walgate backfill {before}public.orders`, or `walgate backfill {before}--all`",
        )


def _choose_tables(settings: Settings, named: list[str] | None, *, is_all: bool) -> list[TableName]:
    from cdc_core.source.backfillable import find_read_obstacles
    from cdc_core.source.connection import open_for_query
    from orchestration.backfill.queue import QueueReader

    if named:
        _require_either(named, is_all=is_all)
        return parse_tables(named)
    if not is_all:
        return [waiting.table for waiting in QueueReader(settings).read()]
    source = settings.source
    with closing(open_for_query(source, application_name="walgate backfill")) as connection:
        hindrances = find_read_obstacles(connection, source.publication)
    for table, hindrance in hindrances.items():
        if hindrance is not None:
            typer.echo(f"left out: {table}: {hindrance.reason}; fix: {hindrance.fix}", err=True)
    return sorted(table for table, hindrance in hindrances.items() if hindrance is None)
