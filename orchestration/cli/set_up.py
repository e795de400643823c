"""`walgate init` writes a configuration to start from; `walgate check` checks the source."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cdc_core.errors import Retry, SourceError
from orchestration.cli.context import Context
from orchestration.cli.table_names import parse_tables
from orchestration.cli.template import format_configuration, write_configuration

if TYPE_CHECKING:
    from cdc_core.settings import SourceSettings
    from cdc_core.source.problems import Problem
    from cdc_core.vocabulary import TableName

ANSWER_VERSION = 1
_ANSWER_IS_NO = 1
# Problems that `init --create` is about to fix, or prints the SQL for.
_MADE_BY_INIT = {"publication_missing", "slot_missing", "role_replication"}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("init")(init)
    app.command("check")(check)


def init(
    context: typer.Context,
    dsn: Annotated[str, typer.Option(help="Connection string of the source, without password.")],
    *,
    create: Annotated[
        bool, typer.Option("--create", help="Make publication and slot in the source.")
    ] = False,
    tables: Annotated[
        list[str] | None, typer.Option(help="Tables to publish; default: all that have a key.")
    ] = None,
    slot: Annotated[str, typer.Option(help="Name of the slot.")] = "walgate",
    publication: Annotated[str, typer.Option(help="Name of the publication.")] = "walgate",
    root: Annotated[str, typer.Option(help="Folder of the lake.")] = "lake",
) -> None:
    """Write a commented walgate.toml; with --create make publication and slot."""
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
        typer.echo("next: the same command with --create, or make publication and slot yourself;")
        typer.echo("then `walgate check`")


def check(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Find every problem of the source, each with its fix; also whether it continues the log.

    Exits 1 on an error.
    """
    from cdc_core.capture.readiness import find_refusals
    from cdc_core.source.connection import open_for_query
    from cdc_core.source.preflight import find_problems
    from cdc_core.source.problems import sort_problems

    settings = context.obj.load_settings()
    source = settings.source
    with closing(open_for_query(source, application_name="walgate check")) as connection:
        problems = find_problems(connection, source, settings.tables)
    problems = sort_problems([*find_refusals(settings, problems), *problems])
    if as_json:
        answer = {"version": ANSWER_VERSION, "problems": [asdict(p) for p in problems]}
        typer.echo(json.dumps(answer, indent=2))
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(_summary(problems))
    return _ANSWER_IS_NO if any(problem.severity == "error" for problem in problems) else 0


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
                fix="mend these, then run `walgate check`",
                retry=Retry.AFTER_FIX,
            )
    # The server makes a slot only after the transactions that are open now have ended.
    with closing(open_connection(source, application_name="walgate init")) as connection:
        creation = create_replication(connection, source, tables or list_keyed_tables(connection))
    for name in creation.made:
        typer.echo(f"made {name}")
    if creation.refused:
        typer.echo("-- The role may not do this; let an owner of the tables run, in this order:")
        for statement in creation.refused:
            typer.echo(statement)
    else:
        typer.echo("next: `walgate check`, then `walgate up`: it copies the tables and streams on")


def _summary(problems: list[Problem]) -> str:
    """Whether the source is ready, and the number of problems by severity, worst first."""
    if not problems:
        return "ready: no problems found"
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.severity] = counts.get(problem.severity, 0) + 1
    listed = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items())
    return f"not ready: {listed}" if counts.get("error") else f"ready: {listed}"
