"""`walgate check`: every problem of the source and of the lake at once, each with its fix."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdc_core.settings import Settings
    from cdc_core.source.problems import Problem

ANSWER_VERSION = 1
CLUSTER_CODE = "spark_cluster"
_ANSWER_IS_NO = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    context: typer.Context,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Answer as JSON.")] = False,
) -> int:
    """Find every problem of the source, of the object store and of the cluster, with its fix.

    Also checks that the source matches the log. Exits 1 on an error.
    """
    from cdc_core.capture.readiness import describe_store_problems, find_refusals
    from cdc_core.errors import WalgateError
    from cdc_core.source.connection import open_for_query
    from cdc_core.source.preflight import find_problems
    from cdc_core.source.problems import sort_problems

    settings = context.obj.load_settings()
    source = settings.source
    elsewhere = [*describe_store_problems(settings.lake.root), *_find_cluster_problems(settings)]
    try:
        with closing(open_for_query(source, application_name="walgate check")) as connection:
            problems = find_problems(connection, source, settings.tables)
        problems = sort_problems([*elsewhere, *find_refusals(settings, problems), *problems])
    except WalgateError:
        # The source does not answer. What was found elsewhere must not be lost.
        for problem in elsewhere:
            typer.echo(str(problem), err=True)
        raise
    if as_json:
        answer = {"version": ANSWER_VERSION, "problems": [asdict(p) for p in problems]}
        typer.echo(json.dumps(answer, indent=2))
    else:
        for problem in problems:
            typer.echo(str(problem))
        typer.echo(_summary(problems))
    return _ANSWER_IS_NO if any(problem.severity == "error" for problem in problems) else 0


def _find_cluster_problems(settings: Settings) -> Iterator[Problem]:
    """Yield what the cluster does not do; nothing without one, which needs no JVM."""
    from cdc_core.source.problems import Problem, Severity

    if settings.spark.master.startswith("local"):
        return
    from cdc_core.errors import WalgateError
    from orchestration.runs.spark import open_spark
    from spark_jobs.fast_path.cluster_check import find_cluster_problem

    try:
        session = open_spark(settings)
    except WalgateError as error:
        what, expected = "Spark cannot use the cluster", f"a session at {settings.spark.master}"
        yield Problem(Severity.ERROR, CLUSTER_CODE, what, expected, error.message, error.fix)
        return
    found = find_cluster_problem(session)
    session.stop()
    if found is not None:
        severity = Severity.WARNING if found.is_only_slow else Severity.ERROR
        yield Problem(severity, CLUSTER_CODE, found.what, found.expected, found.found, found.fix)


def _summary(problems: list[Problem]) -> str:
    """Whether the source is ready, and the number of problems by severity, worst first."""
    if not problems:
        return "ready: no problems found"
    counts: dict[str, int] = {}
    for problem in problems:
        counts[problem.severity] = counts.get(problem.severity, 0) + 1
    listed = ", ".join(f"{n} {kind}{'s' * (n > 1)}" for kind, n in counts.items())
    return f"not ready: {listed}" if counts.get("error") else f"ready: {listed}"
