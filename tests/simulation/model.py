"""The judge: it compares the source's tables with the fold of the log, at every LSN.

Two simple interpreters compute both, entry by entry. Each row of the fold must equal the source's
row at the same LSN. Until a backfill is done a row may be missing, and a value that was never sent
is a named hole. After a table halts it is not judged any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from cdc_core.vocabulary import Lsn, Position, Relation
from spark_jobs.lake.lake import Bound
from spark_jobs.schema.evolution import Halt, TableSchema, accept_first, evolve
from tests.simulation.server import Row
from tests.simulation.staging import Entry
from tests.simulation.tables import Rows
from tests.simulation.world import World

HOLE = "<hole>"
# Reads a table of the lake: its rows, and whether it is said to be halted; None where it has none.
Read: TypeAlias = Callable[[str, Bound], tuple[Rows, bool] | None]


class WrongData(AssertionError):
    """The fold of the log differs from the source, and nothing reports it."""


@dataclass
class Folded:
    """A table as the log leaves it."""

    rows: Rows = field(default_factory=dict)
    schema: TableSchema | None = None
    halt: Halt | None = None

    def apply(self, entry: Entry, relations: dict[int, Relation]) -> None:
        """Apply one entry, unless the table cannot follow it."""
        if entry.version is not None:
            relation = relations[entry.version]
            schema = (
                accept_first(relation) if self.schema is None else evolve(self.schema, relation)
            )
            if isinstance(schema, Halt):
                self.halt = schema
                return
            self.schema = schema
        if entry.op == "truncate":
            self.rows.clear()
        elif entry.op == "sweep":
            said = json.loads(entry.detail or "")
            start = Position(*said["start"])
            self.rows = {k: (row, at) for k, (row, at) in self.rows.items() if at >= start}
        else:
            self._change(entry)

    def _change(self, entry: Entry) -> None:
        gone = entry.old or entry.values
        assert gone is not None
        before, _ = self.rows.pop(str(gone[0]), (None, None))
        if entry.values is None:
            return
        texts = [str(text) for text in entry.values]
        for index in entry.unchanged or ():
            texts[index] = HOLE if before is None else before[index]
        self.rows[texts[0]] = (tuple(texts), entry.position)


def read_source(
    world: World, table: str, filled: list[Row]
) -> Iterator[tuple[int, dict[str, Row]]]:
    """The source's table after each transaction, by the end LSN."""
    rows = {row[0]: row for row in filled}
    yield 0, dict(rows)
    for committed in world.server.wal:
        for change in committed.changes:
            if change.table != table:
                continue
            if change.kind == "truncate":
                rows.clear()
            if change.kind == "alter":
                rows = {key: (key, f"{row[1]}!", *row[2:]) for key, row in rows.items()}
            if change.old is not None:
                rows.pop(change.old[0], None)
            if change.new is not None:
                rows[change.new[0]] = change.new
        yield committed.end_lsn, dict(rows)


def judge_log(
    world: World, table: str, filled: list[Row], *, older: list[Row] | None = None
) -> None:
    """Compare the fold of the log with the source at every staged LSN.

    `older` has rows of an older epoch; if it is given, the table is judged only after its sweep.
    Raises: WrongData.
    """
    relations = {
        row["relation_version"]: Relation.from_description(row) for row in world.log.relations
    }
    entries = _list_entries(world, table)
    if len({entry.position for entry in world.log.entries}) < len(world.log.entries):
        raise WrongData("the log has a change twice")
    swept = min(world.ledger.swept.values(), default=None)
    left = enumerate(older or ())
    folded, at = Folded({row[0]: (row, Position(1, Lsn(1), n)) for n, row in left}), 0
    silent = _find_silent(world, table)
    for end_lsn, rows in read_source(world, table, filled):
        if end_lsn > world.log.staged[world.log.epochs[-1].epoch]:
            break
        while at < len(entries) and entries[at].end_lsn <= end_lsn:
            folded.apply(entries[at], relations)
            at += 1
        if folded.halt is not None:
            return
        is_whole = swept is not None and end_lsn >= swept
        if end_lsn not in silent and (is_whole or older is None):
            compare(folded.rows, rows, end_lsn, is_whole=is_whole)


def judge_cuts(world: World, table: str, read: Read) -> None:
    """Read at each cut and at each LSN below the newest, as readers do. Raises: WrongData."""
    if not world.tables.cuts:
        return
    epoch = world.log.epochs[-1].epoch
    bounds = [cut.bound for cut in world.tables.cuts]
    oldest, newest = min(bounds), max(bounds)
    silent = _find_silent(world, table)
    for end_lsn, rows in read_source(world, table, []):
        at = Bound(epoch, Lsn(end_lsn))
        if not end_lsn or at > newest or end_lsn in silent:
            continue
        found = read(table, at)
        if found is None:
            is_dropped = world.log.trimmed is not None and at < oldest
            if rows and not is_dropped:
                raise WrongData(f"at {at.lsn} the lake says that it has no rows of {table}")
            continue
        held, is_halted = found
        if not is_halted:
            compare(held, rows, end_lsn, is_whole=True)


def _list_entries(world: World, table: str) -> list[Entry]:
    own = [entry for entry in world.log.entries if entry.table == f"public.{table}"]
    return sorted(own, key=lambda entry: entry.position)


def _find_silent(world: World, table: str) -> set[int]:
    """The LSNs where the log does not show an ALTER yet: from its end to its table's next entry."""
    ends = [entry.end_lsn for entry in _list_entries(world, table)]
    silent: set[int] = set()
    for altering in world.server.wal:
        if not any(c.kind == "alter" and c.table == table for c in altering.changes):
            continue
        until = min((end for end in ends if end > altering.end_lsn), default=None)
        silent |= {
            one.end_lsn
            for one in world.server.wal
            if one.end_lsn >= altering.end_lsn and (until is None or one.end_lsn < until)
        }
    return silent


def compare(held: Rows, rows: dict[str, Row], end_lsn: int, *, is_whole: bool) -> None:
    """Compare rows of the lake with those of the source. Raises: WrongData."""
    for key, (row, position) in held.items():
        source = rows.get(key)
        known = [n for n, text in enumerate(row) if text != HOLE]
        if source is None or any(row[n] != source[n] for n in known):
            raise WrongData(
                f"at {Lsn(end_lsn)} the lake has {row} by {position}, the source has {source}"
            )
        if is_whole and len(known) < len(row):
            raise WrongData(f"at {Lsn(end_lsn)} the lake, which should be whole, has {row}")
    if is_whole and held.keys() != rows.keys():
        missing = sorted(rows.keys() - held.keys())
        raise WrongData(f"at {Lsn(end_lsn)} the lake, which should be whole, lacks {missing}")
