"""`walgate check`: every problem of the source and of the lake at once, each with its fix."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cdc_core.source.problems import Problem

ANSWER_VERSION = 1
_ANSWER_IS_NO = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Find every problem of the source and of the lake's object store, each with its fix.

    Also checks that the source matches the log. Exits 1 on an error.
    """
    from cdc_core.capture.readiness import describe_store_problems, find_refusals
    from cdc_core.source.connection import open_for_query
    from cdc_core.source.preflight import find_problems
    from cdc_core.source.problems import sort_problems

    settings = context.obj.load_settings()
    source = settings.source
    with closing(open_for_query(source, application_name="walgate check")) as connection:
        problems = find_problems(connection, source, settings.tables)
    in_store = describe_store_problems(settings.lake.root)
    problems = sort_problems([*in_store, *find_refusals(settings, problems), *problems])
    if as_json:
        answer = {"version": ANSWER_VERSION, "problems": [asdict(p) for p in problems]}
        typer.echo(json.dumps(answer, indent=2))
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(_summary(problems))
    return _ANSWER_IS_NO if any(problem.severity == "error" for problem in problems) else 0


def _summary(problems: list[Problem]) -> str:
    """Whether the source is ready, and the number of problems by severity, worst first."""
    if not problems:
        return "ready: no problems found"
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.severity] = counts.get(problem.severity, 0) + 1
    listed = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items())
    return f"not ready: {listed}" if counts.get("error") else f"ready: {listed}"
