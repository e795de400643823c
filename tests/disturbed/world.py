"""Random histories with disturbances of the lake, the rules, captures and merges.

A world has random statements, schema changes, and deaths of captures and merges. A disturbed world
also has merges of some tables only, two merges at once, table folders that are deleted or restored
from an old copy, rules that change, and a chunk that is held while captures end and begin. At each
rest a table equals its source, or something names it: it is halted, or it waits for a whole read.
At the end every waiting table is read whole, and every table equals its source.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from cdc_core.errors import MergeError
from cdc_core.table_states import TableState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from orchestration.backfill.queue import QueueReader
from orchestration.capture.own_capture import ensuring_capture
from orchestration.verification.verify import verify_tables
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge.rounds import merge_until
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.disturbed.rules import KEYS, Rule, conceal
from tests.end_to_end.random_judge import read_rows
from tests.end_to_end.random_tables import RandomTable
from tests.end_to_end.test_random_streams import World
from tests.fix_pipeline import DEADLINE_S, Pipeline
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.walgate_command import walgate_command, walgate_environment

PHASES = 3
STEPS = 12
# A whole read may find that another one is needed.
_MAX_CURES = 6
_SOME_ROWS = 1_000_000
_RULED = "ruled"


class DisturbedWorld(World):
    """Some tables, a part of them with a rule that may change, and a lake that others disturb."""

    published = ("for all tables",)

    def __init__(
        self,
        seed: int,
        tables: int,
        database: Database,
        make_pipeline: Callable[..., Pipeline],
        spark: SparkSession,
    ) -> None:
        """Make the tables and read each of them whole, so that no table lacks rows."""
        super().__init__(seed, tables, database, make_pipeline)
        self.spark = spark
        # A rule names its column, so such a table keeps it.
        self.rules = {t: Rule.NONE for t in self._list_tables() if _is_ruled(t.name)}
        self.key = KEYS[0]
        self.copies: dict[TableName, Path] = {}
        self.moves: list[str] = []
        self.wrong: list[str] = []
        for name, history in self.source.histories.items():
            history.fate = history.fate and not _is_ruled(name)
        self._write_rules()
        self._cure()

    def draw_table(self, number: int, kinds: Mapping[str, list[str]]) -> RandomTable:
        """A table that has a key."""
        table = RandomTable.draw(self.rng, number, kinds)
        if table.identity == "n":
            return self.draw_table(number, kinds)
        return replace(table, name=f"{_RULED}{number}") if number % 2 else table

    def live_disturbed(self) -> None:
        """Play all phases; record what is wrong at each rest and at the end."""
        moves = (
            self._merge_some,
            self._merge_twice_at_once,
            self._delete_folder,
            self._copy_folder,
            self._put_back,
            self._change_rule,
            self._hold_chunk,
        )
        for _ in range(PHASES):
            if self.child is None and self.rng.random() < 0.5:
                self.start_capture()
            self.source.change_some(0.2)
            self.source.take_steps(STEPS * len(self.names))
            for move in self.rng.sample(moves, 3):
                self.moves.append(move.__name__)
                self.source.settle()
                move()
                self.source.take_steps(STEPS)
            self.source.settle()
            self.source.show()
            self._come_to_rest()
            self._judge(f"rest after {self.moves}")
            self.end_capture()
        self._cure()
        self._judge("the end", may_be_named=False)

    # What happens.

    def _merge_some(self) -> None:
        """Merge some tables; the merge may die."""
        self.catch_up()
        self.merge_some(self.spark)

    def _merge_twice_at_once(self) -> None:
        """Two merges of all tables at once; either may refuse."""
        self.catch_up()
        lakes = (self._open_lake(), self._open_lake())
        budgets = [self.rng.choice((20, _SOME_ROWS)) for _ in lakes]

        def run(lake: Lake, budget: int) -> None:
            with contextlib.suppress(MergeError):
                merge_until(self.spark.newSession(), lake, round_rows=budget, tables=self.names)

        threads = [
            threading.Thread(target=run, args=pair) for pair in zip(lakes, budgets, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _delete_folder(self) -> None:
        shutil.rmtree(self._choose_folder(), ignore_errors=True)

    def _copy_folder(self) -> None:
        """Keep a table as it is now."""
        table = self.rng.choice(self._list_tables())
        folder = self._open_lake().locate(table)
        if folder.exists():
            kept = self.pipeline.folder / f"copy-{len(self.moves)}"
            shutil.copytree(path_of(folder), kept)
            self.copies[table] = kept

    def _put_back(self) -> None:
        """Put a table back as it was once."""
        if not self.copies:
            self._copy_folder()
            return
        table = self.rng.choice(sorted(self.copies))
        folder = self._open_lake().locate(table)
        shutil.rmtree(path_of(folder), ignore_errors=True)
        shutil.copytree(self.copies[table], path_of(folder))

    def _change_rule(self) -> None:
        """Another rule for a table, or another key for all."""
        self._end_child(is_killed=False)
        if Rule.HASH in self.rules.values() and self.rng.random() < 0.5:
            self.key = next(key for key in KEYS if key != self.key)
        else:
            table = self.rng.choice(sorted(self.rules))
            self.rules[table] = self.rng.choice([r for r in Rule if r is not self.rules[table]])
        self._write_rules()

    def _hold_chunk(self) -> None:
        """Hold a chunk while captures end and begin; then its worker goes on, or is killed."""
        table = self.rng.choice(self._list_tables())
        held = self.pipeline.folder / "held"
        held.touch()
        if self.child is None or not self.child.is_running:
            self.start_capture()
        worker = self._start_worker(table, held)
        spool = self.pipeline.spool
        wait_for(
            lambda: any(spool.glob("chunk-*.arrow")) or not worker.is_running,
            DEADLINE_S,
            "a chunk to stand in the spool",
        )
        for _ in range(self.rng.randint(1, 2)):
            self.source.write_some(STEPS)
            self.source.settle()
            self._end_child(is_killed=self.rng.random() < 0.5)
            # If the worker has started its own capture first, this one waits for the slot.
            self.child = self.pipeline.start()
            lsn = self.pipeline.current_lsn()
            self.pipeline.database.execute("insert into fence default values")
            self._wait_until_staged(lsn)
        held.unlink()
        if self.rng.random() < 0.3:
            worker.kill()
        else:
            worker.wait(DEADLINE_S)

    # Rest, and what is to be seen then.

    def _come_to_rest(self) -> None:
        self.catch_up()
        lake = self._open_lake()
        for _ in range(2):
            merge_until(self.spark, lake, round_rows=_SOME_ROWS, tables=self.names)
            # A table that was put back is older than its cut until a merge has looked.
            self.catch_up()

    def _judge(self, when: str, *, may_be_named: bool = True) -> None:
        lake = self._open_lake()
        states, backfilled = read_states(lake), read_completeness(lake)
        equal = self._verify() if self.rng.random() < 0.3 or not may_be_named else set()
        for table in self._list_tables():
            state, lack = states.get(str(table)), backfilled.find_incomplete(str(table))
            is_named = (state is not None and state.state is TableState.HALTED) or lack is not None
            difference = self._compare(lake, table)
            if difference is None:
                continue
            if str(table) in equal:
                self.wrong.append(f"{when}: {table} is called equal: {difference}")
            if not is_named or not may_be_named:
                named = f"{state}, {lack}"
                self.wrong.append(
                    f"{when}: {table} ({self.rules.get(table)}; {named}): {difference}"
                )

    def _compare(self, lake: Lake, table: TableName) -> str | None:
        """How a table of the lake differs from its source; None where it does not."""
        truth = conceal(self.source.read(table.name), self.rules.get(table, Rule.NONE), self.key)
        opened = open_table(lake.locate(table))
        held = None if opened is None else opened.to_pyarrow_table()
        if held is not None and any(held.column("_holes").to_pylist()):
            return "it has holes"
        rows = read_rows(self.source.reader, truth, held)
        if rows == list(truth.rows):
            return None
        missing = [row for row in truth.rows if row not in rows]
        surplus = [row for row in rows if row not in truth.rows]
        return f"lacks {len(missing)} {missing[:1]}, has {len(surplus)} others {surplus[:1]}"

    def _verify(self) -> set[str]:
        """The tables that a verification calls equal."""
        settings, stop = self.pipeline.load_settings(), threading.Event()
        with ensuring_capture(settings, stop):
            found = verify_tables(settings, self.spark, None, stop=stop, tell=lambda _: None)
        return {str(one.table) for one in found.tables if one.result == "equal"}

    def _cure(self) -> None:
        """Read whole what waits for it, until nothing does."""
        settings = self.pipeline.load_settings()
        for _ in range(_MAX_CURES):
            self.catch_up()
            merge_until(self.spark, self._open_lake(), round_rows=_SOME_ROWS, tables=self.names)
            waiting = QueueReader(settings).read()
            if not waiting:
                return
            for is_anew in (False, True):
                chosen = [one.table for one in waiting if one.is_anew == is_anew]
                if chosen:
                    run_backfills(
                        settings,
                        chosen,
                        chunk_rows=self.rng.choice((3, 1000)),
                        parallel=2,
                        stop=threading.Event(),
                        is_anew=is_anew,
                    )
        self.wrong.append(f"these wait to be read whole again and again: {waiting}")

    def _wait_until_staged(self, lsn: int) -> None:
        """Wait until the log has come past an LSN, by whichever capture."""
        wait_for(lambda: self.pipeline.staged() > lsn, DEADLINE_S, "the log to go on")

    def _end_child(self, *, is_killed: bool) -> None:
        """End the capture that runs as a process, if one does."""
        child, self.child = self.child, None
        if child is None or not child.is_running:
            return
        if is_killed:
            child.kill()
        else:
            child.stop(signal.SIGTERM)

    def _list_tables(self) -> list[TableName]:
        return [TableName("public", table.name) for table in self.source.tables]

    def _choose_folder(self) -> Path:
        return path_of(self._open_lake().locate(self.rng.choice(self._list_tables())))

    def _open_lake(self) -> Lake:
        rules = self.pipeline.load_settings().tables
        return Lake(self.pipeline.lake, rules)

    def _write_rules(self) -> None:
        file = self.pipeline.folder / "walgate.toml"
        kept = file.read_text().split("[tables.")[0]
        sections = [
            f"[tables.'public.{table.name}']\n{rule.value}\n"
            for table, rule in self.rules.items()
            if rule is not Rule.NONE
        ]
        file.write_text(kept + "".join(sections))
        self.pipeline.environment["WALGATE_HASH_KEY"] = self.key

    def _start_worker(self, table: TableName, held: Path) -> ChildProcess:
        rows = str(self.rng.choice((2, 1000)))
        arguments = ("backfill", str(table), "--chunk-rows", rows, "--anew")
        file = self.pipeline.folder / "walgate.toml"
        hold = {"WALGATE_HOLD_AT": f"after_chunk_stored={held}"}
        worker = ChildProcess(
            walgate_command(*arguments, "--config", file),
            log=self.pipeline.folder / f"worker-{len(self.pipeline.children)}.log",
            environment=walgate_environment(self.pipeline.environment | hold),
        )
        self.pipeline.children.append(worker)
        return worker


def _is_ruled(name: str) -> bool:
    return name.startswith(_RULED)
