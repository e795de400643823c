"""`walgate rebuild`: builds a table of the lake again, under the settings of now."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc_core.errors import ConfigurationError
from orchestration.cli.table_names import parse_tables


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rebuild")(rebuild)


def rebuild(
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="The table, as schema.name.")],
    *,
    mode: Annotated[
        str | None,
        typer.Option(help="What to build again: the table's rows, or its history or append."),
    ] = None,
) -> None:
    """Build a table of the lake again from the log and the oldest cut, without the source.

    The new table has the `types` of the settings. Merges may go on at the same time.
    """
    from orchestration.runs.spark import open_spark
    from spark_jobs.lake.lake import Lake, require_epochs
    from spark_jobs.merge.rebuilding import choose_target, rebuild_target
    from spark_jobs.merge.rounds import merge_until

    settings = context.obj.load_settings()
    lake = Lake.of(settings)
    named = parse_tables([table])
    if len(named) != 1:
        problem = f"expected one table, found {len(named)}: {table}"
        raise ConfigurationError([problem], fix="rebuild one table after the other")
    target = choose_target(lake, named[0], mode)
    require_epochs(lake)
    session = open_spark(settings)
    done = rebuild_target(
        session, lake, target, tell=lambda line: typer.echo(f"rebuild: {line}", err=True)
    )
    name = str(target)
    merge_until(
        session,
        lake,
        round_rows=settings.merge.round_rows,
        tables=[name],
        rebuilt=[name],
        is_thorough=False,
    )
    typer.echo(
        f"{name}: built again through {done.through.lsn}, {done.rows:,} rows, {done.seconds:.1f} s"
    )
