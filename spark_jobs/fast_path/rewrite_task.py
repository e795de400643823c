"""Rewrites the files of a table that its changes touch, by Arrow.

A Spark task runs this, or the driver if the tables are tiny. A portion is some files of one table.
For each portion, the task folds the table's changes, finds the files that have a changed key, and
writes the other rows of these files to new files. One portion of each table also writes the rows
that arrive. The task commits nothing.

The task refuses a portion in these cases, among others:
- Arrow cannot fold a change.
- A row of the table has a newer position than the change of its key.
- Two rows of the table have one key.
- The files with a changed key are too large together.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc_core.crash_points import reach
from cdc_core.lake_storage.place import LakePlace
from spark_jobs.delta.attempts import Attempt
from spark_jobs.delta.file_writer import WrittenFile, write_batches
from spark_jobs.fast_path.arrow_fold import ArrowOutcome, fold_by_arrow
from spark_jobs.fast_path.carried_values import fill_carried
from spark_jobs.fast_path.joined_files import count_joined
from spark_jobs.fast_path.key_search import (
    KeySearch,
    Refusal,
    TableFile,
    read_groups,
    require_memory,
)
from spark_jobs.lake.lake import Bound
from spark_jobs.log.in_memory import MAX_BYTES, LogInMemory
from spark_jobs.log.reading import POSITION
from spark_jobs.pg_types.arrow_rows import Columns
from spark_jobs.target.limits import MergeLimits

_OWN_POSITION = [f"_{name}" for name in POSITION]


@dataclass(frozen=True, slots=True)
class LogSlice:
    """A table's entries in a log range: above `low` and up to `high`.

    `own` has the files that may have entries of the table, with their sizes. `files` has all files
    of the range, if a task should read them once for all tables; otherwise the same as `own`.
    """

    table: str
    files: Mapping[LakePlace, int]
    own: Mapping[LakePlace, int]
    low: Bound | None
    high: Bound


@dataclass(frozen=True, slots=True)
class Portion:
    """Some files of one table, and the changes to apply to them.

    `columns` are the table's columns with their conversions, `key` the indexes of the key columns.
    New files are those of `attempt`. One portion of each table `takes_arrivals`.
    `has_whole_old`: the source may have sent whole old rows.
    The files with a changed key may have at most `max_bytes` together. `all_files` are all files of
    the table, if the portion takes arrivals and the source did not send some values: these may be
    in any file.
    """

    changes: LogSlice
    columns: Columns
    key: tuple[int, ...]
    has_whole_old: bool
    folder: LakePlace
    attempt: Attempt
    files: tuple[TableFile, ...]
    all_files: tuple[TableFile, ...]
    takes_arrivals: bool
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RewrittenPortion:
    """The files that a portion replaces and adds, and the changed keys that it found.

    `arrived` counts the rows that arrive in the table. `found` has the indexes of the changed keys
    that the portion's files contain. Keys with an arriving row have the lowest indexes.
    """

    table: str
    removed: tuple[str, ...]
    added: tuple[WrittenFile, ...]
    arrived: int
    found: frozenset[int]
    seconds: float


@dataclass(frozen=True, slots=True)
class RefusedPortion:
    """A portion that Arrow cannot rewrite, and why."""

    table: str
    reason: str


def rewrite_portions(
    portions: Sequence[Portion], limits: MergeLimits, *, max_log_bytes: int = MAX_BYTES
) -> list[RewrittenPortion | RefusedPortion]:
    """Rewrite portions one after the other. Those of one log range read small log files once.

    The changes of a table may take `max_log_bytes` in memory.
    """
    logs: dict[object, LogInMemory] = {}
    done: list[RewrittenPortion | RefusedPortion] = []
    for portion in portions:
        changes = portion.changes
        log_range = (changes.low, *changes.files)
        if log_range not in logs:
            # Read up to the greatest bound. Each table then takes the entries up to its own bound.
            highest = max(other.changes.high for other in portions)
            logs[log_range] = LogInMemory(
                changes.files,
                changes.low,
                highest,
                shared_bytes=limits.shared_log_bytes,
                max_bytes=max_log_bytes,
            )
        try:
            done.append(_rewrite(portion, logs[log_range], limits))
        except Refusal as refusal:
            done.append(RefusedPortion(changes.table, str(refusal)))
        except Exception as error:  # noqa: BLE001 - The other tables must not fail with it.
            # The text of an error may have a value. Spark will say what is wrong with the table.
            done.append(RefusedPortion(changes.table, f"a task failed: {type(error).__name__}"))
    return done


def _rewrite(portion: Portion, log: LogInMemory, limits: MergeLimits) -> RewrittenPortion:
    began = time.monotonic()
    changes = portion.changes
    entries = log.take(changes.table, changes.high, changes.own)
    if entries is None:
        raise Refusal("the changes do not fit in memory")
    outcome = fold_by_arrow(
        entries, portion.columns, portion.key, has_whole_old=portion.has_whole_old
    )
    if outcome is None:
        raise Refusal("the changes do not decide a key, or a text does not fit its type")
    key = [portion.columns[i].name for i in portion.key]
    changed = _ChangedKeys(outcome, key)
    touched = _find_touched(portion, changed, limits)
    # A large file stays by itself, so that no file grows with each merge.
    closed = [file for file in touched if file.size >= limits.open_file_bytes]
    joined = [file for file in touched if file.size < limits.open_file_bytes]
    arriving = outcome.rows.slice(0, 0)
    if portion.takes_arrivals:
        arriving = fill_carried(
            outcome,
            portion.folder,
            portion.all_files,
            key,
            max_bytes=min(portion.max_bytes, limits.carried_file_bytes),
            max_held=limits.carried_bytes,
        )
    parts: list[Iterable[pa.RecordBatch]] = [
        changed.read_others(portion, [file]) for file in closed
    ]
    *groups, last = _group_by_size(joined, limits.joined_file_bytes)
    parts += [changed.read_others(portion, group) for group in groups]
    parts.append(chain(changed.read_others(portion, last), arriving.to_batches()))
    added = [write_batches(portion.attempt, part) for part in parts]
    reach("in_file_rewrite")
    return RewrittenPortion(
        changes.table,
        tuple(file.name for file in touched),
        tuple(file for file in added if file is not None),
        outcome.rows.num_rows,
        frozenset(changed.found),
        time.monotonic() - began,
    )


def _group_by_size(files: Sequence[TableFile], most: int) -> list[list[TableFile]]:
    """Group files in order, each group of at most `most` bytes or one file; at least one group."""
    groups: list[list[TableFile]] = [[]]
    size = 0
    for file in files:
        if groups[-1] and size + file.size > most:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size
    return groups


def _find_touched(portion: Portion, changed: _ChangedKeys, limits: MergeLimits) -> list[TableFile]:
    """The files of a portion to rewrite: those with a changed key, and some small ones."""
    touched: list[TableFile] = []
    size = 0
    for file in portion.files:
        if changed.search.may_be_in(file) and changed.search.is_in(portion.folder / file.name):
            if file.has_deletions:
                raise Refusal("a file with a changed key has deleted rows")
            # Check it before anything is written. A later refusal would waste the files.
            require_memory(portion.folder / file.name, changed.schema)
            touched.append(file)
            size += file.size
            if size > portion.max_bytes:
                raise Refusal(f"files of more than {portion.max_bytes} bytes have changed keys")
    return [*touched, *_choose_joined(portion, {*touched}, limits)]


def _choose_joined(
    portion: Portion, touched: Collection[TableFile], limits: MergeLimits
) -> list[TableFile]:
    """Small files without a changed key, to be joined with the rows that arrive, smallest first."""
    small = [
        file
        for file in portion.files
        if portion.takes_arrivals
        and file.size <= limits.small_file_bytes
        and not file.has_deletions
        and file not in touched
    ]
    by_size = sorted(small, key=lambda file: file.size)
    return by_size[: count_joined([file.size for file in by_size], limits.open_file_bytes)]


class _ChangedKeys:
    """The keys that a fold changes, arriving ones first. It records which of them files contain."""

    def __init__(self, outcome: ArrowOutcome, key: list[str]) -> None:
        columns = [*key, *_OWN_POSITION]
        arriving = outcome.rows.select(columns)
        others = (one.cast(arriving.schema) for one in (outcome.gone, outcome.undecided))
        self._rows = pa.concat_tables([arriving, *others])
        self._decided = arriving.num_rows + outcome.gone.num_rows
        self.schema: pa.Schema = outcome.rows.schema
        self.search = KeySearch(self._rows.select(key))
        self.found: set[int] = set()

    def read_others(self, portion: Portion, files: Sequence[TableFile]) -> Iterator[pa.RecordBatch]:
        """Read files; yield the rows whose key did not change, and record the other keys.

        Raises: Refusal.
        """
        for file in files:
            path = portion.folder / file.name
            for rows in read_groups(path, self.schema, all_columns=self.schema):
                found = self.search.find(rows)
                if found.num_rows:
                    self._record(rows, found)
                    stays = np.ones(rows.num_rows, dtype=bool)
                    stays[found["_row"].to_numpy()] = False
                    rows = rows.filter(pa.array(stays))  # noqa: PLW2901 - The rows that stay.
                yield from rows.combine_chunks().to_batches()

    def _record(self, rows: pa.Table, found: pa.Table) -> None:
        places = found["_place"].to_pylist()
        if len({*places}) < len(places) or not self.found.isdisjoint(places):
            raise Refusal("the table has several rows with the same key")
        if max(places) >= self._decided:
            raise Refusal("a transaction brought a second row of a key, and one departed")
        self.found.update(places)
        own = rows.select(_OWN_POSITION).take(found["_row"])
        arriving = self._rows.select(_OWN_POSITION).take(found["_place"])
        if _has_newer(own, arriving):
            raise Refusal("the table has a row with a newer position than its change")


def _has_newer(own: pa.Table, arriving: pa.Table) -> bool:
    """Whether a row of the table is newer than its change; NULL is below every position."""
    is_newer = pa.array(np.zeros(own.num_rows, dtype=bool))
    for name in reversed(_OWN_POSITION):
        # A position's last part decides only if all parts before it are equal.
        mine, other = own[name].cast(pa.int64()), arriving[name].cast(pa.int64())
        same = pc.and_(pc.equal(mine, other), is_newer)
        is_newer = pc.or_(pc.greater(mine, other), same)
        is_newer = pc.fill_null(is_newer, False)
    return bool(pc.any(is_newer, min_count=0).as_py())
