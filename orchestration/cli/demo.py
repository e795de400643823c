"""`walgate demo`: a proof that anybody can run; with `--keep` the same stack, to look around in."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Annotated

import typer

from orchestration.cli.stop_signal import listen_for_stop

_ANSWER_IS_NO = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    *,
    is_kept: Annotated[
        bool, typer.Option("--keep", help="Run the stack until Ctrl-C, without the comparison.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(help="Where everything of it goes; deleted at the next start.")
    ] = Path(".walgate/demo"),
    rows: Annotated[
        int, typer.Option(min=6, help="Rows of old orders that the shop has before Walgate comes.")
    ] = 500_000,
    seconds: Annotated[
        float, typer.Option(min=1, help="How long the shop sells once tables are whole.")
    ] = 20,
    large_transaction: Annotated[
        int, typer.Option(min=6, help="Rows of the one large transaction.")
    ] = 300_000,
    writers: Annotated[int, typer.Option(min=1, max=40, help="Concurrent writers.")] = 4,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Transactions a second of all writers together.")
    ] = 50,
    cuts: Annotated[
        int, typer.Option(min=1, help="At so many cuts invariants are checked while it sells.")
    ] = 3,
    live: Annotated[
        int, typer.Option(min=0, help="So often at least they are checked at live, too.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Of what the writers do.")] = 1,
) -> int:
    """Run a shop, replicate it through Dagster, compare every table; exit 1 on a difference."""
    from orchestration.demo.demo import (
        STEPS,
        STEPS_KEPT,
        Sale,
        keep_demo,
        run_demo,
    )
    from orchestration.demo.show import Show
    from orchestration.demo.stack import DemoOptions

    plan = DemoOptions(folder, rows, writers, rate, seed)
    show = Show(sys.stdout, steps=STEPS_KEPT if is_kept else STEPS)
    hurry = threading.Event()
    with listen_for_stop(again=hurry.set, is_hang_up_stop=True) as stop:
        try:
            if is_kept:
                keep_demo(plan, show, stop=stop, hurry=hurry)
                return 0
            sale = Sale(seconds, large_transaction, cuts, live)
            is_equal = run_demo(plan, sale, show, stop=stop, hurry=hurry)
        finally:
            show.close()
    return 0 if is_equal else _ANSWER_IS_NO
