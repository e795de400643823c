"""`walgate demo`: it proves what it says, and leaves nothing running, however it ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.demo.running_demo import DEADLINE_S, RunningDemo
from tests.walgate_command import run_walgate

START = Callable[..., RunningDemo]
TABLES = ("customers", "deliveries", "order_lines", "orders", "payments", "products", "stock")
SHORT = (
    "--rows",
    "20000",
    "--seconds",
    "5",
    "--rate",
    "15",
    "--large-transaction",
    "30000",
    "--cuts",
    "1",
)
QUIET = ("--keep", "--rows", "600", "--rate", "10")


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[START]:
    """Lend a maker of demos in one folder."""
    made: list[RunningDemo] = []

    def start(*options: str) -> RunningDemo:
        made.append(RunningDemo(tmp_path / "demo", *options, log=f"demo-{len(made)}.out"))
        return made[-1]

    yield start
    for demo in made:
        demo.end()


@pytest.mark.core
@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(
    "live",
    [
        # Seven tables folded at live, beside a pipeline and on two cores, take minutes.
        0,
        pytest.param(1, marks=pytest.mark.soak),
    ],
)
def test_a_demo_compares_every_table_and_ends(start_demo: START, live: int) -> None:
    demo = start_demo(*SHORT, "--live", str(live))
    assert demo.child.wait(DEADLINE_S) == 0, demo.output
    said = demo.output
    assert demo.find_left() == []
    for table in TABLES:
        row = re.search(rf"\n *{table} +([\d,]+) +([\d,]+) +0 +0 +([\d,]+)", said, re.MULTILINE)
        assert row is not None, said
        assert row[1] == row[2]
        assert row[3] != "0", "Dagster's records tell of no inserted row"
    assert re.search(r"Every table equals the source, through LSN [0-9A-F]+/[0-9A-F]+", said)
    checked = re.search(
        r"held at each of (\d+) cuts that were checked, of \d+(, and \w+( times)? at live)?", said
    )
    assert checked is not None
    assert int(checked[1]) >= 2
    assert bool(checked[2]) == bool(live)
    assert re.search(r"7 tables with 2\d,\d{3} rows, inserted before the slot", said)
    assert re.search(r"one transaction of 3\d,\d{3} rows committed", said)
    assert re.search(r"public.customers +equal at [^\n]+, healed", said)
    assert "Damaged rows were found and healed while the shop sold" in said
    assert len(re.findall(r"p50 [\d.]+ s, p95 [\d.]+ s", said)) == 2
    for job in ("replicate", "backfill_tables", "merge"):
        assert re.search(rf"sensor \w+ launched run \w+ of job {job}", said)
        assert re.search(rf"{job}: \d+ runs? \(\w+ [A-Z]+", said)
    # What it says of the tables and how to ask them is so, with the servers gone.
    (query,) = re.findall(r'sql --config (\S+) "([^"]+)"', said)
    answer = run_walgate("sql", "--config", query[0], query[1], folder=demo.folder)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.startswith("status\torders\ttotal\n")
    assert "shipped\t" in answer.stdout


@pytest.mark.timeout(2 * DEADLINE_S)
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        # All three take one way, which the tests of `walgate up` go by each of them.
        pytest.param(signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param(signal.SIGHUP, marks=pytest.mark.soak),
    ],
)
def test_a_stopped_demo_leaves_nothing(start_demo: START, number: signal.Signals) -> None:
    demo = start_demo(*SHORT)
    demo.wait_for_line("this command runs neither itself")
    demo.wait_until(demo.find_left, "its processes")
    assert demo.stop(number) == 3, demo.output
    assert demo.find_left() == []
    assert "stopped before its end" in demo.output


@pytest.mark.timeout(4 * DEADLINE_S)
def test_a_kept_stack_survives_its_kill_in_nothing_but_leftovers(start_demo: START) -> None:
    killed = start_demo(*QUIET)
    killed.wait_for_line("The shop sells until Ctrl-C")
    assert "http://127.0.0.1:" in killed.output
    second = start_demo(*QUIET)
    assert second.child.wait(DEADLINE_S) == 3
    assert f"process {killed.child.pid} runs the stack" in second.output
    killed.child.send(signal.SIGKILL)
    killed.child.wait()
    left = killed.find_left()
    programs = {process.name() for process in left}
    assert programs >= {"postgres", "redis-server"}
    home = (killed.folder / "servers").readlink()
    again = start_demo(*QUIET)
    again.wait_for_line("The shop sells until Ctrl-C")
    assert not set(left) & set(again.find_left())
    assert not home.exists()
    # By error: the source dies under the writers.
    (server,) = [process for process in again.find_left() if process.name() == "postgres"]
    server.kill()
    assert again.child.wait(DEADLINE_S) == 3, again.output
    assert again.find_left() == []
    assert "a writer of the shop failed" in again.output


@pytest.mark.timeout(2 * DEADLINE_S)
def test_a_kept_stack_ends_well_when_it_is_stopped(start_demo: START) -> None:
    demo = start_demo(*QUIET)
    demo.wait_for_line("is STARTED")
    assert demo.stop(signal.SIGINT) == 0, demo.output
    assert demo.find_left() == []
    assert "nothing is left running" in demo.output
