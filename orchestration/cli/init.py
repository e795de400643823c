"""`walgate init`: writes a configuration to start from, and makes publication and slot."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_core.errors import Retry, SourceError
from orchestration.cli.context import Context
from orchestration.cli.table_names import parse_tables
from orchestration.cli.template import format_configuration, write_configuration

if TYPE_CHECKING:
    from cdc_core.settings import SourceSettings
    from cdc_core.vocabulary import TableName

# Problems that `init --create` is about to fix, or prints the SQL for.
_MADE_BY_INIT = {"publication_missing", "slot_missing", "role_replication"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("init")(init)


def init(
    context: typer.Context,
    dsn: Annotated[str, typer.Option(help="Connection string of the source, without a password.")],
    *,
    create: Annotated[
        bool, typer.Option("--create", help="Make the publication and the slot in the source.")
    ] = False,
    tables: Annotated[
        list[str] | None, typer.Option(help="Tables to publish; default: all that have a key.")
    ] = None,
    slot: Annotated[str, typer.Option(help="Name of the slot.")] = "walgate",
    publication: Annotated[str, typer.Option(help="Name of the publication.")] = "walgate",
    root: Annotated[str, typer.Option(help="Folder of the lake.")] = "lake",
) -> None:
    """Write a commented walgate.toml; with --create make the publication and the slot."""
    from cdc_core.settings import parse_settings

    chosen: Context = context.obj
    file = chosen.config or Path(os.environ.get("WALGATE_CONFIG") or "walgate.toml")
    names = parse_tables(tables)
    text = format_configuration(dsn=dsn, slot=slot, publication=publication, root=root)
    settings = parse_settings(text, file=file.resolve(), environ=os.environ)
    write_configuration(file, text)
    typer.echo(f"wrote {file}")
    if create:
        _create(settings.source, names)
    else:
        typer.echo("next: run the same command with --create, or make the publication and the slot")
        typer.echo("yourself; then run `walgate check`")


def _create(source: SourceSettings, tables: list[TableName]) -> None:
    """Make publication and slot; print the SQL that the role may not run."""
    from cdc_core.source.connection import open_connection, open_for_query
    from cdc_core.source.creation import create_replication, list_keyed_tables
    from cdc_core.source.preflight import find_problems

    with closing(open_for_query(source, application_name="walgate init")) as connection:
        blockers = [
            problem
            for problem in find_problems(connection, source)
            if problem.severity == "error"
            and problem.table is None
            and problem.code not in _MADE_BY_INIT
        ]
        if blockers:
            raise SourceError(
                "; ".join(map(str, blockers)),
                fix="correct these problems, then run `walgate check`",
                retry=Retry.AFTER_FIX,
            )
    # The server makes a slot only after the transactions that are open now have ended.
    with closing(open_connection(source, application_name="walgate init")) as connection:
        creation = create_replication(connection, source, tables or list_keyed_tables(connection))
    for name in creation.made:
        typer.echo(f"made {name}")
    if creation.refused:
        typer.echo("-- The role may not run these statements; let an owner of the tables run them,")
        typer.echo("-- in this order:")
        for statement in creation.refused:
            typer.echo(statement)
    else:
        typer.echo("next: run `walgate check`, then `walgate up`, which backfills the tables and")
        typer.echo("replicates their changes")
