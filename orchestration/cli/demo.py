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
        Path, typer.Option(help="Folder for all files; the next demo deletes its contents.")
    ] = Path(".walgate/demo"),
    rows: Annotated[
        int, typer.Option(min=6, help="Rows of old orders in the shop before replication starts.")
    ] = 500_000,
    seconds: Annotated[
        float, typer.Option(min=1, help="Seconds that the shop sells after all tables are read.")
    ] = 20,
    large_transaction: Annotated[
        int, typer.Option(min=6, help="Rows of the large transaction.")
    ] = 300_000,
    writers: Annotated[int, typer.Option(min=1, max=40, help="Concurrent writers.")] = 4,
    rate: Annotated[
        float, typer.Option(min=0.1, help="Transactions per second, over all writers.")
    ] = 50,
    cuts: Annotated[
        int,
        typer.Option(min=1, help="Check invariants at this many cuts at least, while it sells."),
    ] = 3,
    live: Annotated[
        int, typer.Option(min=0, help="Check invariants at live this many times at least, too.")
    ] = 1,
    wants_store: Annotated[
        bool,
        typer.Option("--s3", help="Put the lake into an object store in memory, on loopback."),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers of the writers.")] = 1,
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

    plan = DemoOptions(folder, rows, writers, rate, seed, wants_store)
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
