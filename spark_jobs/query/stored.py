"""Finds a table's version at the newest cut at or below a bound, and reads it by Arrow.

No JVM. If changes above this version must be folded, `as_of` folds them with Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_layout import name_commit
from cdc_core.lake_storage.delta_log import DeltaLog, UnknownCheckpoint
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import TableName
from spark_jobs.lake.completeness import Incomplete, read_completeness
from spark_jobs.lake.cut_plan import Place, needs_fold
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Lake, find_bound, find_trimmed, open_table
from spark_jobs.lake.ledger import Cut, find_cut, read_states
from spark_jobs.modes.registry import find_mode
from spark_jobs.schema.evolution import Halt
from spark_jobs.target.older_targets import know_place


class VersionGone(LakeError):
    """Somebody has removed commits or data files of a version that was asked for."""


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table at the newest cut at or below a bound.

    `opened` is the table at the version that the cut names; None before its first version. The
    table is merged through `low`; None if there is no such cut. If `needs_fold`, its changes above
    `low` must be folded on top of the version; else the version is the table at the bound. If
    `lacks_changes`, the table halted at `low`, and the log no longer has all changes since then.
    `halt` says why the table halted at `low`, if `lacks_changes` or if the bound is that of the
    cut. If `incomplete` is not None, rows may be missing at the bound.
    """

    opened: DeltaTable | None
    low: Bound | None
    halt: Halt | None
    incomplete: Incomplete | None
    needs_fold: bool
    lacks_changes: bool = False


def find_stored(lake: Lake, table: TableName, at: Bound) -> StoredTable:
    """Find what a table is at the newest cut at or below a bound.

    Raises: LakeError if the version in the cut is gone.
    """
    cut = find_cut(lake, at)
    name = str(table)
    incomplete = read_completeness(lake).find_incomplete(name, at)
    if cut is None:
        return StoredTable(None, None, None, incomplete, needs_fold=True)
    place = cut.find_place(name)
    lacks_changes = name in cut.halted and _is_trimmed(lake, place.bound)
    halt = _find_halt(lake, cut, name, place.bound) if at == cut.bound or lacks_changes else None
    if place.version is None:
        return StoredTable(
            None,
            place.bound,
            halt,
            incomplete,
            needs_fold=not lacks_changes,
            lacks_changes=lacks_changes,
        )
    opened = open_version(lake, table, place.version)
    require_named(lake, table, place, opened)
    is_behind = needs_fold(place.bound, at, is_halted=halt is not None)
    return StoredTable(
        opened, place.bound, halt, incomplete, needs_fold=is_behind, lacks_changes=lacks_changes
    )


def open_version(lake: Lake, table: TableName, version: int) -> DeltaTable:
    """Open a version of a table. Raises: VersionGone; LakeError if it cannot be opened now."""
    folder = lake.locate(table)
    try:
        return open_delta(folder, version=version)
    except Exception as error:
        # This raises a better error if the table cannot be opened at any version.
        open_current(folder)
        if _is_gone(folder, version):
            raise make_gone_error(table, version) from error
        raise _make_unopened_error(table, version, error) from error


def read_stored(lake: Lake, table: TableName, opened: DeltaTable) -> pa.Table:
    """Read the present rows of an open table by Arrow, in no order.

    Raises: VersionGone if a file of its version is gone; LakeError if delta-rs cannot read the
    table.
    """
    mode = find_mode(opened)
    # Deleted rows may be many, so they are not even read.
    query = "select * from stored"
    if mode.kept is not None:
        query = f"{query} where {mode.kept.mark} is not true"
    # Unlike delta-rs's own reader for Arrow, this also reads tables with deletion vectors.
    try:
        found = QueryBuilder().register("stored", opened).execute(query)
    except DeltaError as error:
        raise LakeError(
            f"delta-rs cannot read {table}: {type(error).__name__}",
            fix="read the table with Spark",
            retry=Retry.AFTER_FIX,
        ) from error
    try:
        stored = pa.table(found)
    except (DeltaError, OSError, pa.ArrowException) as error:
        # The Delta log may still have the version, although some of its data files are gone.
        if _lacks_file(lake.locate(table), opened):
            raise make_gone_error(table, opened.version()) from error
        raise _make_unopened_error(table, opened.version(), error) from error
    # DataFusion, which delta-rs reads with, may give texts as string views.
    stored = stored.cast(pa.schema(opened.schema().to_arrow()))
    return mode.select_present_arrow(stored)


def make_gone_error(table: TableName, version: int) -> VersionGone:
    """The error for a version that a cut names and that is gone."""
    return VersionGone(
        f"version {version} of {table}, which a cut names, is gone",
        fix="run `walgate merge`: it builds a deleted or restored table again; or read at a newer"
        " LSN, set a longer [lake] grace, and let no VACUUM remove versions",
        retry=Retry.AFTER_FIX,
    )


def _make_unopened_error(table: TableName, version: int, error: Exception) -> LakeError:
    return LakeError(
        f"version {version} of {table} is there, but cannot be read: {type(error).__name__}",
        fix="try again; if it fails again, check the storage of the lake and its credentials",
        retry=Retry.LATER,
    )


def _is_gone(folder: LakePlace, version: int) -> bool:
    """Whether the log of a table lacks what a reader of a version needs. Raises: OSError."""
    try:
        return DeltaLog.list(folder).list_commits(version) is None
    except UnknownCheckpoint:
        return not (folder / name_commit(version)).exists()


def _lacks_file(folder: LakePlace, opened: DeltaTable) -> bool:
    paths = pa.table(opened.get_add_actions())["path"].to_pylist()
    return any(not (folder / unquote(path)).exists() for path in paths)


def require_named(lake: Lake, table: TableName, place: Place, opened: DeltaTable) -> None:
    """Check that the version that a cut names is still the same commit. Raises: LakeError."""
    epochs = lake.read_epochs()
    held = know_place(place, epochs).held
    if held is not None and find_bound(opened, epochs) != held:
        raise make_gone_error(table, opened.version())


def _is_trimmed(lake: Lake, low: Bound) -> bool:
    """Whether the log lacks entries above a bound."""
    log = open_table(lake.changes)
    trimmed = None if log is None else find_trimmed(log)
    return trimmed is not None and low < trimmed


def _find_halt(lake: Lake, cut: Cut, table: str, low: Bound) -> Halt | None:
    """The halt of a table at a cut. The ledger has the reason of its newest halt only."""
    if table not in cut.halted:
        return None
    state = read_states(lake).get(table)
    if state is None or state.since != low:
        return Halt("", "")
    return Halt(state.reason or "", state.fix or "", state.curable)
