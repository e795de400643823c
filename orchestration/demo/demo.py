"""Runs the demo: a shop sells, Dagster replicates, and at the end every table is compared.

The sensors launch capture, merges and backfills. This process writes to the shop, damages and heals
some rows of the lake, and reads the lake and Dagster's records. It does not merge.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import psycopg
from pyspark.sql import SparkSession

from cdc_core.errors import Retry, WalgateError
from cdc_core.source.connection import open_connection
from cdc_core.source.marks import emit_mark, read_current_lsn
from cdc_core.vocabulary import Lsn, TableName
from orchestration.demo.comparison import Comparison, compare_table, list_published
from orchestration.demo.damage import DAMAGED, WHAT_IS_DAMAGED, Healing, damage_customers
from orchestration.demo.records import Records
from orchestration.demo.shop import import_archive
from orchestration.demo.show import Show
from orchestration.demo.stack import DemoOptions, Stack, enter_environment, running_stack
from orchestration.demo.verdict import DemoResult, show_places, show_verdict
from orchestration.demo.watch import Watch, begin
from orchestration.runs.spark import open_spark
from orchestration.status.freshness import measure_freshness
from orchestration.verification.answer import format_verdict
from orchestration.verification.healing import verify_and_heal
from spark_jobs.lake.lake import Bound
from spark_jobs.log.backlog import Backlog, read_backlog

T = TypeVar("T")

STEPS, STEPS_KEPT = 11, 5
_POLL_S = 1.0
# Each report reads the log and Dagster's database, which takes time from the pipeline.
_TELL_INTERVAL_S = 3.0
# The longest wait of a step for the sensors, on a machine that may be busy.
_PATIENCE_S = 900.0
# At how many cuts the invariants are checked at least, if there are as many. Each check takes 4 s.
_LEAST_CUTS = 10
# A merge reports its last rounds to Dagster when it has nothing left to do.
_TOLD_S = 60.0


@dataclass(frozen=True, slots=True)
class Sale:
    """How long the shop sells once tables are whole, and the rows of its large transaction.

    The sale goes on until the invariants were checked at `cuts` cuts, and `live` times at live.
    """

    seconds: float
    large_transaction: int
    cuts: int
    live: int


class Stopped(WalgateError):
    """The demo was stopped by a signal."""

    def __init__(self) -> None:
        """Say that nothing of the demo is left running."""
        super().__init__(
            "the demo was stopped before its end; all its processes have ended",
            fix="run it again: it starts from the beginning",
            retry=Retry.LATER,
        )


def run_demo(
    plan: DemoOptions, sale: Sale, show: Show, *, stop: threading.Event, hurry: threading.Event
) -> bool:
    """Run the demo to its end; True if everything was equal.

    Raises: Stopped; StackInUse; WalgateError if a part does not do its work.
    """
    show.headline("A shop on PostgreSQL, replicated to Delta tables through Dagster, and compared.")
    enter_environment(plan.folder)
    with running_stack(plan, show, stop=stop, hurry=hurry) as stack:
        if stop.is_set():
            raise Stopped
        # While Java starts, its output and ours go to a log, so the demo prints nothing. Not on the
        # main thread: PySpark would replace our signal handler by its own.
        with show.silence():
            session = begin(lambda: open_spark(stack.settings)).result()
        run = Run(stack, session, show, stop, seed=plan.seed)
        run.begin_archive(sale.large_transaction)
        first = run.begin()
        healing = run.heal()
        verdict = run.prove(first, healing) if run.sell(sale) else None
        show.step("Everything ends")
    show.say("servers, Dagster and Spark have ended; nothing is left running")
    if verdict is None:
        for breach in run.watch.breaches:
            show.headline(f"BROKEN: {breach}")
        return False
    show.step("The result")
    show_verdict(show, verdict)
    settings = stack.settings
    show_places(show, lake=settings.lake.root, config=stack.config, at="latest", page=None)
    return verdict.is_equal


def keep_demo(
    plan: DemoOptions, show: Show, *, stop: threading.Event, hurry: threading.Event
) -> None:
    """Run the demo's stack until it is stopped. Raises: StackInUse, WalgateError."""
    show.headline("A shop on PostgreSQL, replicated to Delta tables through Dagster.")
    enter_environment(plan.folder)
    with running_stack(plan, show, stop=stop, hurry=hurry) as stack:
        lake, records = stack.lake, Records(stack.dagster.instance, stack.settings)
        if not stop.is_set():
            page = stack.dagster.url
            show_places(show, lake=lake.root, config=stack.config, at="live", page=page)
            show.say(f"PostgreSQL     psql {json.dumps(stack.servers.dsn)}")
            show.say("stop           Ctrl-C; everything ends with this command")
            show.step("The shop sells until Ctrl-C")
        while not stop.wait(_TELL_INTERVAL_S):
            stack.writers.require_health()
            for line in records.read_news():
                show.say(line)
            sold = sum(stack.writers.count().values())
            show.progress(f"{sold:,} transactions; {_describe(read_backlog(lake))}")
        show.step("Everything ends: runs drain first; press Ctrl-C again to stop without waiting")
    show.say("servers and Dagster have ended; nothing is left running")


class Run:
    """One demo, from the start of its stack to the end of the stack."""

    def __init__(
        self, stack: Stack, session: SparkSession, show: Show, stop: threading.Event, *, seed: int
    ) -> None:
        """Nothing is checked or printed yet."""
        self._stack = stack
        self._session = session
        self._show = show
        self._stop = stop
        self._records = Records(stack.dagster.instance, stack.settings)
        self._told_at = 0.0
        self._archive: Future[tuple[int, float]] | None = None
        with closing(self._connect()) as connection:
            self._tables = list_published(connection, stack.settings.source.publication[0])
        self.watch = Watch(session, stack.lake, self._tables, seed=seed)

    def begin_archive(self, rows: int) -> None:
        """Begin the large transaction, which runs while the tables are read."""
        self._show.say(f"a transaction of {rows:,} rows begins")
        self._archive = begin(lambda: self._import_archive(rows))

    def begin(self) -> Bound:
        """Wait for the first cut at which every table is whole; return it."""
        show = self._show
        show.say(f"its page is {self._stack.dagster.url}; its sensors are on")
        show.step("Backfills read the older rows while the shop sells")
        self._wait_until(
            lambda _: bool(self.watch.list_cuts()), "a cut at which every table is complete"
        )
        first = self.watch.list_cuts()[0]
        show.say(f"at {first.lsn} every table is complete: all can be read together at this cut")
        return first

    def sell(self, sale: Sale) -> bool:
        """Let the shop sell until enough cuts were checked; True if every invariant held."""
        show, watch = self._show, self.watch
        show.step(f"The shop sells for {sale.seconds:g} s; invariants are checked at cuts")
        began = time.monotonic()
        while not watch.breaches:
            passed = time.monotonic() - began
            is_imported = self._archive is None
            lacks_live = watch.live_readings < sale.live
            is_enough = is_imported and watch.cuts >= sale.cuts and not lacks_live
            if passed >= sale.seconds and is_enough:
                return True
            if passed > sale.seconds + _PATIENCE_S:
                checks = f"checks at {sale.cuts} cuts, and {sale.live} times at live"
                raise self._lose_patience(checks)
            left = sale.seconds - passed
            watch.look(wants_live=lacks_live)
            self._look(f"{left:.0f} s left" if left > 0 else "waiting for the last checks")
        return False

    def heal(self) -> Healing:
        """Damage rows of a table, then verify and heal the table while the shop sells."""
        show, stack = self._show, self._stack
        show.step("The demo damages rows of the lake, and verify heals them, while the shop sells")
        self._await(begin(lambda: damage_customers(self._session, stack.lake)))
        show.say(f"in the Delta table: {WHAT_IS_DAMAGED}")
        doing = ["verifying"]
        healed = begin(
            lambda: verify_and_heal(
                stack.settings,
                self._session,
                [DAMAGED],
                is_healing=True,
                stop=self._stop,
                tell=doing.append,
            )
        )
        while not healed.done():
            self.watch.look(wants_live=False)
            self._look(doing[-1])
        verdict = healed.result()
        for line in format_verdict(verdict):
            show.say(line)
        return Healing(verdict)

    def prove(self, first: Bound, healing: Healing) -> DemoResult | None:
        """Stop the writers, wait for the last merge, check and compare; None if a check fails."""
        show, stack = self._show, self._stack
        show.step("The writers stop; the sensors stage and merge to the last commit")
        end = self._stop_writers()
        settled = self._wait_until(
            lambda backlog: (
                backlog.staged is not None and backlog.staged.lsn >= end and not backlog.entries
            ),
            f"everything up to {end}",
        )
        assert settled.staged is not None
        assert settled.cut is not None
        show.say(f"staged through {settled.staged.lsn}; no change of a table is above the cut")
        show.step("Invariants are checked at the last cut, and at more of the others")
        cuts = self.watch.list_cuts()
        least = min(_LEAST_CUTS, len(cuts))
        while not self.watch.breaches:
            self.watch.take_findings()
            if not self.watch.is_checking:
                if self.watch.cuts >= least and self.watch.has_checked_since(cuts[-1]):
                    break
                self.watch.begin_next(wants_live=False)
            self._look("checking")
        if self.watch.breaches:
            return None
        show.say(self._describe_watch())
        show.step("Every table is compared with the source")
        comparisons = self._compare(settled.cut)
        self._wait_until_told(settled.cut.lsn)
        return DemoResult(
            settled.staged.lsn,
            comparisons,
            [self._records.sum_applied(compared.table) for compared in comparisons],
            self.watch.breaches,
            self.watch.cuts,
            len(self.watch.list_cuts()),
            self.watch.live_readings,
            healing,
            measure_freshness(stack.lake, first),
            self._records.summarize(),
        )

    def _import_archive(self, rows: int) -> tuple[int, float]:
        began = time.monotonic()
        with psycopg.connect(self._stack.servers.dsn, autocommit=True) as connection:
            written = import_archive(connection, rows=rows)
        return written, time.monotonic() - began

    def _tell_archive(self) -> None:
        """Print once that the large transaction has committed. Raises: the error that it met."""
        if self._archive is not None and self._archive.done():
            rows, seconds = self._archive.result()
            self._archive = None
            self._show.say(f"one transaction of {rows:,} rows committed after {seconds:.1f} s")

    def _stop_writers(self) -> Lsn:
        """Stop the writers; return the LSN at which the source's WAL then ends."""
        writers = self._stack.writers
        writers.stop()
        writers.require_health()
        done = writers.count()
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in done.most_common())
        self._show.say(f"{done.total():,} transactions: {kinds}")
        with closing(self._connect()) as connection:
            # Once the mark is staged, everything before it is staged.
            emit_mark(connection, json.dumps({"by": "walgate demo"}))
            end = read_current_lsn(connection)
        self._show.say(f"the source's WAL ends at {end}")
        return end

    def _compare(self, at: Bound) -> list[Comparison]:
        stack = self._stack
        comparisons = []
        with closing(self._connect()) as connection:
            for table in self._tables:
                self._show.progress(f"comparing {table}")

                def compare(table: TableName = table) -> Comparison:
                    return compare_table(connection, self._session, stack.lake, table, at)

                comparisons.append(self._await(begin(compare)))
        different = sum(not compared.is_equal for compared in comparisons)
        self._show.say(f"{len(comparisons)} tables compared, {different or 'none'} different")
        return comparisons

    def _wait_until(self, is_reached: Callable[[Backlog], bool], what: str) -> Backlog:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            backlog = read_backlog(self._stack.lake)
            if is_reached(backlog):
                self._tell_news()
                return backlog
            if time.monotonic() > deadline:
                raise self._lose_patience(what)
            self.watch.look(wants_live=False)
            self._look(f"waiting for {what}")

    def _wait_until_told(self, cut: Lsn) -> None:
        """Wait until Dagster has the last round on record, or for `_TOLD_S` seconds.

        A merge that was lost never reports its rounds.
        """
        deadline = time.monotonic() + _TOLD_S
        while not self._records.has_told(cut) and time.monotonic() < deadline:
            self._look("waiting for Dagster's record of the last round")

    def _look(self, doing: str) -> None:
        """Print news and progress, and wait a moment. Raises: Stopped, or a writer's error."""
        self._tell_archive()
        if time.monotonic() - self._told_at >= _TELL_INTERVAL_S:
            self._tell_news()
            parts = [doing, _describe(read_backlog(self._stack.lake))]
            if self.watch.cuts or self.watch.live_readings:
                parts.append(self._describe_watch())
            self._show.progress("; ".join(parts))
            self._told_at = time.monotonic()
        self._stop.wait(_POLL_S)
        self._require_going()
        self._stack.writers.require_health()

    def _tell_news(self) -> None:
        for line in self._records.read_news():
            self._show.say(line)

    def _describe_watch(self) -> str:
        live = self.watch.live_readings
        return f"invariants hold at {self.watch.cuts} cuts and {live} times at live"

    def _await(self, done: Future[T]) -> T:
        while not wait([done], timeout=_POLL_S).done:
            self._require_going()
        return done.result()

    def _require_going(self) -> None:
        if self._stop.is_set():
            raise Stopped

    def _connect(self) -> psycopg.Connection:
        return open_connection(self._stack.settings.source, application_name="walgate demo")

    def _lose_patience(self, what: str) -> WalgateError:
        return WalgateError(
            f"gave up after {_PATIENCE_S:.0f} s of waiting for {what}",
            fix=f"see the logs in {self._stack.dagster.logs}; try again when the machine is idle",
            retry=Retry.LATER,
        )


def _describe(backlog: Backlog) -> str:
    if backlog.staged is None:
        return "nothing is staged yet"
    staged = f"staged {backlog.staged.lsn}"
    if backlog.cut is None:
        return f"{staged}, no cut yet"
    return f"{staged}, cut {backlog.cut.lsn}, {backlog.entries:,} changes between"
