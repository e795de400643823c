"""Builds a target again from the lake alone, under the settings of now.

The new rows begin with the target's version at the oldest kept cut, in the shape that the settings
ask for. Merges bring them up to the newest cut, in a folder of their own, while other merges go on.
Then, under the target's lock, the last changes follow, and one commit swaps the files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from cdc_core.crash_points import reach
from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.place import LakePlace
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableMode, TableName
from spark_jobs.append.entries import list_fields as list_entry_fields
from spark_jobs.append.evolution import EntrySchema
from spark_jobs.append.reshaping import reshape_entries
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.delta.attempts import Attempt, attempting
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.delta.direct_parquet import (
    allows_direct_commits,
    read_fields,
    read_rows,
)
from spark_jobs.delta.file_bounds import read_statistics
from spark_jobs.delta.file_writer import WrittenFile
from spark_jobs.fold.plan import choose_types, read_schema
from spark_jobs.fold.reshaping import reshape_columns
from spark_jobs.history.reshaping import HistoryShape, reshape_versions
from spark_jobs.lake.cut_plan import Place
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Bound, Epoch, Lake, count_rows, find_bound, read_losses
from spark_jobs.lake.ledger import Cut, find_cut, find_oldest_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.log.round_log import RoundLog
from spark_jobs.merge.history_merge import write_apart
from spark_jobs.merge.round_start import RoundStart
from spark_jobs.merge.targets import TableRound, merge_targets
from spark_jobs.modes.registry import choose_mode, find_mode
from spark_jobs.schema.evolution import TableSchema, check_choices
from spark_jobs.session.failures import Failures
from spark_jobs.session.session import find_jvm, forget_tables
from spark_jobs.target.commits import write_table
from spark_jobs.target.creation import allow_types, create_target
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from spark_jobs.target.losses import count_added
from spark_jobs.target.older_targets import Inspection, find_target


@dataclass(frozen=True, slots=True)
class RebuiltTarget:
    """A target that was built again: its version, the bound that it has reached, and its rows."""

    target: Target
    version: int
    through: Bound
    rows: int
    seconds: float


def choose_target(lake: Lake, table: TableName, mode: str | None) -> Target:
    """Choose the target of a table that a mode asks for; None asks for its rows.

    Raises: LakeError if the settings do not ask for it.
    """
    modes = lake.choose_modes(table)
    if mode is not None and mode not in modes:
        listed = ", ".join(modes)
        raise LakeError(
            f"{table} has no mode {mode}: `modes` has {listed}",
            fix=f"name one of {listed}, or add the mode in walgate.toml and run `walgate merge`",
            retry=Retry.AFTER_FIX,
        )
    others = {TableMode.HISTORY: TargetKind.HISTORY, TableMode.APPEND: TargetKind.APPEND}
    kind = TargetKind.ROWS if mode is None else others.get(TableMode(mode), TargetKind.ROWS)
    return Target(table, kind)


def rebuild_target(
    session: SparkSession,
    lake: Lake,
    target: Target,
    *,
    tell: Callable[[str], None],
    limits: MergeLimits = DEFAULT_LIMITS,
) -> RebuiltTarget:
    """Build a target again, and swap it for the old one in one commit.

    No cut names the new version yet: let a merge name it with `merge_until(…, rebuilt=…)`.
    Raises: LakeError if the lake lacks what it needs, or the settings do not fit; MergeError
    if another process rebuilds the target, or the storage refuses; DeltaError; OSError.
    """
    began = time.monotonic()
    building = replace(lake, rebuilding=target)
    with lake.lock_table(f"{target} (rebuild)", jvm=find_jvm(session)):
        building.locate_target(target).remove_folder()
        work = _Rebuild(session, lake, building, target, lake.read_epochs(), limits)
        tell(f"{target}: beginning with the oldest cut")
        place = work.begin()
        for _ in range(2):  # The second time there is little left.
            place = work.follow(place, work.find_newest())
        tell(f"{target}: built through {place.bound.lsn}; swapping")
        version, through = work.swap(place)
        building.locate_target(target).remove_folder()
    forget_tables(session)
    folder = lake.locate_target(target)
    rows = count_rows(folder, open_delta(folder, version=version))
    return RebuiltTarget(target, version, through, rows, time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class _Rebuild:
    """A rebuild of a target; `building` is the lake in which the target is the new one."""

    session: SparkSession
    lake: Lake
    building: Lake
    target: Target
    epochs: list[Epoch]
    limits: MergeLimits

    def begin(self) -> Place:
        """Write the target's version at the oldest kept cut, in its new shape."""
        oldest = find_oldest_bound(self.lake)
        cut = None if oldest is None else find_cut(self.lake, oldest)
        if cut is None or open_current(self.lake.locate_target(self.target)) is None:
            raise LakeError(
                f"the lake has no {self.target}",
                fix="check the name and `modes`, and run `walgate merge`, which builds it",
                retry=Retry.AFTER_FIX,
            )
        place = self._find_place(cut)
        if place.version is None:
            return place
        table = self._open(place.version)
        held = find_bound(table, self.epochs) or place.bound
        schema = read_schema(table)
        types = choose_types(self.lake, self.target.table)
        new = replace(schema, chosen=tuple(types(column) for column in schema.columns))
        halt = None if self.target.kind is TargetKind.APPEND else check_choices(new)
        if halt is not None:
            raise LakeError(halt.reason, fix=halt.fix, retry=Retry.AFTER_FIX)
        rows, fields = self._reshape(table, schema, new)
        self._write(rows, fields, new, held)
        return Place(place.bound, open_delta(self._folder).version(), held)

    def follow(self, place: Place, upper: Bound) -> Place:
        """Merge the log into the new target, from its place up to a bound."""
        log = LogFiles.open(self.lake)
        assert log is not None
        if place.bound >= upper:
            return place
        name = str(self.target)
        start = RoundStart(
            self.session,
            self.building,
            log,
            self.epochs,
            self.lake.read_relations(),
            None,
            {name: place},
            Inspection({}),
        )
        failures = Failures(self.building)
        low = place.bound if place.version is not None else None
        table = str(self.target.table)
        with closing(RoundLog(self.session, log, low, upper, table=table)) as entries:
            done = merge_targets(
                start, [name], entries, upper, failures=failures, limits=self.limits
            )
        failures.require_none()
        return _require_place(done, name)

    def find_newest(self) -> Bound:
        """The bound of the newest cut."""
        cut = find_cut(self.lake)
        assert cut is not None
        return cut.bound

    def swap(self, place: Place) -> tuple[int, Bound]:
        """Put the new files in the place of the old ones; return the version and the bound."""
        folder = self.lake.locate_target(self.target)
        with self.lake.lock_table(str(self.target), jvm=find_jvm(self.session)):
            clear_attempts(folder, self.epochs)
            table = open_current(folder)
            found = find_target(table, self.epochs)
            reached = None if found is None else found.bound
            if reached is not None:
                place = self.follow(place, reached)
                self._require_reached(place, reached)
            assert table is not None
            made = open_delta(self._folder)
            through = max(find_bound(made, self.epochs) or place.bound, reached or place.bound)
            fields = read_fields(made)
            before = allow_types(self.session, folder, table, fields)
            self._commit(before, made, through)
            return before.version() + 1, through

    @property
    def _folder(self) -> LakePlace:
        """The folder of the new target."""
        return self.building.locate_target(self.target)

    def _find_place(self, cut: Cut) -> Place:
        """The place of the target at a cut. Raises: LakeError if the log does not reach back."""
        place = cut.find_place(str(self.target))
        log = LogFiles.open(self.lake)
        trimmed = None if log is None else log.trimmed
        if place.version is not None and trimmed is not None and place.bound < trimmed:
            raise LakeError(
                f"{self.target} halted at {place.bound.lsn}, and the log no longer has the changes"
                " since then",
                fix=f"run `walgate backfill '{self.target.table}'`",
                retry=Retry.AFTER_FIX,
            )
        return place

    def _open(self, version: int) -> DeltaTable:
        folder = self.lake.locate_target(self.target)
        try:
            return open_delta(folder, version=version)
        except (DeltaError, OSError) as error:
            raise LakeError(
                f"version {version} of {self.target}, which the oldest cut names, cannot be opened",
                fix=f"run `walgate backfill '{self.target.table}'`",
                retry=Retry.AFTER_FIX,
            ) from error

    def _reshape(
        self, table: DeltaTable, schema: TableSchema, new: TableSchema
    ) -> tuple[DataFrame, list[T.StructField]]:
        """The rows of a version of the target in another table schema, and their columns."""
        stored = read_rows(self.session, self.lake.locate_target(self.target), table)
        match self.target.kind:
            case TargetKind.HISTORY:
                versions, new_shape = reshape_versions(stored, HistoryShape.of(table), new)
                return versions, new_shape.fields
            case TargetKind.APPEND:
                entries = reshape_entries(stored, EntrySchema(schema), EntrySchema(new))
                return entries, list_entry_fields(new)
        mode = choose_mode(self.lake, self.target.table)
        rows = mode.adopt(stored, find_mode(table))
        same = [*range(len(schema.columns))]
        return reshape_columns(rows, schema, new, same), mode.list_fields(new)

    def _write(
        self, rows: DataFrame, fields: list[T.StructField], schema: TableSchema, held: Bound
    ) -> None:
        made = create_target(self.session, self.building, self.target, fields)
        epoch = next(epoch for epoch in self.epochs if epoch.number == held.epoch)
        lossy = count_added(rows, schema, None, None)
        if self.target.kind is TargetKind.HISTORY:
            with attempting(self._folder, version=made.version() + 1) as attempt:
                shape = HistoryShape.of(made)
                added = write_apart(rows, attempt, shape, size=None)
                change = FileChange(attempt, added)
                commit_files(self._folder, made, change, epoch=epoch, reached=held, lossy=lossy)
            return
        write_table(
            rows,
            self._folder,
            made,
            fields=fields,
            mode="append",
            epoch=epoch,
            reached=held,
            lossy=lossy,
        )

    def _require_reached(self, place: Place, reached: Bound) -> None:
        if place.bound < reached:
            raise LakeError(
                f"{self.target} cannot be built beyond {place.bound.lsn}, but it has reached"
                f" {reached.lsn}",
                fix="see `walgate status` for the settings that it halts at; nothing has changed",
                retry=Retry.AFTER_FIX,
            )

    def _commit(self, before: DeltaTable, made: DeltaTable, through: Bound) -> None:
        folder, fields = self.lake.locate_target(self.target), read_fields(made)
        epoch = next(epoch for epoch in self.epochs if epoch.number == through.epoch)
        lossy = read_losses(made) or {}
        if not allows_direct_commits(before):
            rows = read_rows(self.session, self._folder, made)
            write_table(
                rows,
                folder,
                before,
                fields=fields,
                mode="overwrite",
                epoch=epoch,
                reached=through,
                lossy=lossy,
            )
            return
        with attempting(folder, version=before.version() + 1) as attempt:
            added = _take_files(made, self._folder, attempt)
            reach("before_swap")
            change = FileChange(attempt, added, replaces_all=True, fields=fields)
            commit_files(folder, before, change, epoch=epoch, reached=through, lossy=lossy)
        reach("after_swap")


def _take_files(made: DeltaTable, folder: LakePlace, attempt: Attempt) -> list[WrittenFile]:
    """Move the files of a new target to the folder of the old one, as files of an attempt."""
    taken: list[WrittenFile] = []
    for name in pa.table(made.get_add_actions())["path"].to_pylist():
        place = attempt.name_file()
        (folder / unquote(name)).move_to(place)
        footer = read_footer(place)
        taken.append(WrittenFile(place, footer.num_rows, read_statistics(footer)))
    return taken


def _require_place(done: dict[str, TableRound], name: str) -> Place:
    """The place that a merge has brought a target to. Raises: LakeError if it halted at once."""
    result = done[name]
    if result.place.version is None and result.halt is not None:
        raise LakeError(result.halt.reason, fix=result.halt.fix, retry=Retry.AFTER_FIX)
    return result.place
