"""`walgate publish`: adds tables to the publication so that no transaction is lost."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from cdc_core.errors import ConfigurationError
from cdc_core.table_patterns import TablePattern


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("publish")(publish)


def publish(
    context: typer.Context,
    tables: Annotated[
        list[str], typer.Argument(help='Tables: public.orders, "public.*", \'"Odd"."T"\'.')
    ],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the SQL and end.")] = False,
) -> None:
    """Add tables to the publication and show the SQL; waits for transactions that write to them."""
    from cdc_core.source import publishing
    from cdc_core.source.connection import LOCK_S, open_connection

    patterns = _parse_patterns(tables)
    source = context.obj.load_settings().source
    # The statements may take long, so only the wait for a lock has a limit.
    with closing(
        open_connection(source, application_name="walgate publish", lock_s=LOCK_S)
    ) as connection:
        plan = publishing.plan_publishing(connection, source, patterns)
        for table in plan.keyless:
            typer.echo(f"left out, because it has no key: {table}", err=True)
        if not plan.added:
            typer.echo("nothing to add: all of these are published")
            return
        statements = ["BEGIN", *(s.as_string(connection) for s in plan.statements), "COMMIT"]
        typer.echo("\n".join(f"{statement};" for statement in statements))
        if dry_run:
            return
        if publishing.publish(connection, plan):
            typer.echo(
                f"-- done: {len(plan.added)} added and queued; `walgate up` backfills their older"
                " rows by itself, otherwise run `walgate backfill`"
            )
        else:
            typer.echo("-- The role may not run this; let an owner of the tables run it.")


def _parse_patterns(texts: list[str]) -> list[TablePattern]:
    patterns, problems = [], []
    for text in texts:
        try:
            patterns.append(TablePattern.parse(text))
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError(problems, fix='name tables as schema.name or "schema"."name"')
    return patterns
