"""`walgate replicate` and `walgate merge`: the two loops, run from a shell until they are done."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.cli.stop_signal import listen_for_stop


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("replicate")(replicate)


def replicate(
    context: typer.Context,
    *,
    until_current: Annotated[
        bool,
        typer.Option("--until-current", help="Stage all that was committed until now, then end."),
    ] = False,
    seconds: Annotated[float | None, typer.Option(min=0, help="End after so many seconds.")] = None,
) -> None:
    """Stage the source's changes; Ctrl-C and SIGTERM drain."""
    from cdc_core.capture.loop import Bound  # noqa: PLC0415 - not for --help.
    from cdc_core.capture.run import run_capture  # noqa: PLC0415

    settings = context.obj.load_settings()
    with listen_for_stop() as stop:
        run_capture(settings, Bound(stop, until_current=until_current, seconds=seconds))
