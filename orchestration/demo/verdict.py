"""The findings of the demo, and how they are printed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from cdc_core.lake_layout import name_schema
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn
from orchestration.demo.comparison import Comparison
from orchestration.demo.damage import WHAT_IS_DAMAGED, Healing
from orchestration.demo.invariants import INVARIANTS, Breach
from orchestration.demo.object_store import ANY_CREDENTIALS
from orchestration.demo.records import Applied
from orchestration.demo.show import Show
from orchestration.status.freshness import Delay, Freshness

_HEADINGS = (
    "table",
    "source",
    "lake",
    "only source",
    "only lake",
    "inserted",
    "updated",
    "deleted",
)
_QUERY = "select status, count(*) as orders, sum(total) as total from orders group by status"


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The findings: comparisons of all tables, checks of the invariants, healing, delays, runs."""

    through: Lsn
    comparisons: list[Comparison]
    applied: list[Applied]
    breaches: list[Breach]
    checked_cuts: int
    cuts: int
    live_readings: int
    healing: Healing
    freshness: Freshness
    runs: list[str]

    @property
    def is_equal(self) -> bool:
        """Whether every table equals the source, every invariant held, and the damage is healed."""
        is_healed = self.healing.is_whole
        return is_healed and not self.breaches and all(table.is_equal for table in self.comparisons)


def show_verdict(show: Show, verdict: DemoResult) -> None:
    """Print the table of comparisons, then the other findings in sentences."""
    show.table(
        _HEADINGS,
        [
            _write_row(compared, applied)
            for compared, applied in zip(verdict.comparisons, verdict.applied, strict=True)
        ],
    )
    if all(table.is_equal for table in verdict.comparisons):
        show.headline(f"Every table equals the source, through LSN {verdict.through}.")
    for table in verdict.comparisons:
        if not table.is_equal:
            show.headline(f"DIFFERENT: {table.table}{_explain(table)}")
    show.say("rows of each side, and rows without an equal row on the other side,")
    show.say("compared by EXCEPT ALL in both directions, on PostgreSQL's text of every value;")
    show.say("inserted, updated and deleted are what the merges reported to Dagster")
    if not verdict.breaches:
        at_live = _tell_live(verdict.live_readings)
        checked = f"{verdict.checked_cuts} cuts that were checked, of {verdict.cuts}"
        show.headline(f"Every invariant held at each of {checked}{at_live}:")
        for name in INVARIANTS:
            show.say(name)
    for breach in verdict.breaches:
        show.headline(f"BROKEN: {breach}")
    if verdict.healing.is_whole:
        through = verdict.healing.verdict.lsn
        show.headline(f"Damaged rows were found and healed while the shop sold, through {through}.")
    else:
        show.headline(f"NOT HEALED, or more was found than was damaged: {WHAT_IS_DAMAGED}")
    show.headline("How old a change is when it can be read, from its commit in the source:")
    show.say(f"at live (staged)         {_write_delay(verdict.freshness.live)}")
    show.say(f"in the Delta tables      {_write_delay(verdict.freshness.tables)}")
    show.headline("Dagster's own records:")
    for line in verdict.runs:
        show.say(line)


def show_places(show: Show, *, lake: LakePlace, config: Path, at: str, page: str | None) -> None:
    """Print where the tables are and how to query them. An object store ends with the stack."""
    show.headline("Where things are:")
    tables, is_in_store = lake / name_schema("public"), isinstance(lake, ObjectPlace)
    if is_in_store and page is None:
        show.say("Delta tables   gone: the object store kept them in memory, and has ended")
    elif is_in_store:
        # The store takes any credentials.
        show.say(f"Delta tables   {tables}")
        show.say(f"query          {ANY_CREDENTIALS} {format_query(config, at)}")
    else:
        show.say(f"Delta tables   {_shorten(Path(tables.uri))}")
        show.say(f"query          {format_query(config, at)}")
    if page is None:
        show.say("Dagster        `make up` runs the same stack until Ctrl-C, its page included")
    else:
        show.say(f"Dagster        {page}")


def format_query(config: Path, at: str) -> str:
    """A command that queries the demo's lake."""
    place = "" if at == "latest" else f" --at {at}"
    walgate = Path(".venv/bin/walgate")
    program = str(walgate) if walgate.exists() else "walgate"
    return f'{program} sql --config {shlex.quote(_shorten(config))}{place} "{_QUERY}"'


def _tell_live(readings: int) -> str:
    if not readings:
        return ""
    times = "once" if readings == 1 else f"{readings} times"
    return f", and {times} at live while the shop sold"


def _write_row(compared: Comparison, applied: Applied) -> list[str]:
    numbers = (
        compared.source_rows,
        compared.lake_rows,
        compared.only_in_source,
        compared.only_in_lake,
        applied.inserted,
        applied.updated,
        applied.deleted,
    )
    return [compared.table.name, *(f"{number:,}" for number in numbers)]


def _explain(table: Comparison) -> str:
    if table.halt:
        return f" is halted: {table.halt}"
    only = f"{table.only_in_source} rows only in source, {table.only_in_lake} only in lake"
    return f": {only}"


def _write_delay(delay: Delay | None) -> str:
    if delay is None:
        return "no transaction reached it"
    return (
        f"p50 {delay.p50_s:.1f} s, p95 {delay.p95_s:.1f} s, at most {delay.max_s:.1f} s,"
        f" over {delay.transactions:,} transactions"
    )


def _shorten(path: Path) -> str:
    """The path, relative to the working folder if it is below that."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
