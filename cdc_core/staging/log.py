"""The log: `staging/changes`. It alone says how far capture has come.

Every commit has an app transaction whose version is the end LSN that it reaches. So reading the
staged LSN takes milliseconds. A commit names the table version that it extends; Delta refuses it if
another commit came between. Walgate never retries a commit blindly. An append returns only after
data, names and the commit are durable. The newest commit may be of a session that ended before it
was durable. So a session writes that commit to a new file before it trusts it.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from cdc_core.crash_points import reach
from cdc_core.lake_layout import (
    CHANGES,
    DELTA_LOG,
    EPOCHS,
    LOG_TIME_APP,
    RELATIONS,
    TRIMMED_EPOCH_APP,
    TRIMMED_LSN_APP,
    name_checkpoint,
)
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.durability import list_commit, locate_commit, remove_old_copies
from cdc_core.lake_storage.own_commits import is_own_commit, make_commit_id
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.tombstones import Tombstones
from cdc_core.layout import CHANGES_SCHEMA, EPOCHS_SCHEMA
from cdc_core.settings import Settings
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.epochs import Epoch, choose_newest, find_staged
from cdc_core.staging.log_files import LogPoint, StagedFile
from cdc_core.staging.maintenance import MaintenanceLedger
from cdc_core.staging.parts import (
    Part,
    PartWriter,
    move_part,
    write_part,
)
from cdc_core.staging.relations import RelationStore
from cdc_core.staging.subscriptions import Subscription, read_subscription
from cdc_core.staging.tables import (
    append_rows,
    open_table,
    read_rows,
    read_version,
    reopen_table,
    require_columns,
    rewrite_newest,
    staging_errors,
)
from cdc_core.staging.upkeep import LogUpkeep
from cdc_core.vocabulary import Lsn, Relation, TransactionId


class Fenced(Exception):
    """Another writer has committed to the log since this writer read it."""


class Log:
    """The log on disk, at the version that the next commit extends."""

    def __init__(
        self,
        root: LakePlace,
        *,
        spool: Path,
        subscription: Subscription,
        grace_s: float = math.inf,
    ) -> None:
        """Open the log of a lake; create it if it is missing. Raises: StagingError.

        Each append records `subscription` in its commit. Files that the log no longer has stay in
        its folder for `grace_s` seconds.
        """
        self.subscription = subscription
        self._root, self._spool = root, spool
        self.changes_folder = root / CHANGES
        self.tombstones = Tombstones(self.changes_folder)
        self._changes = open_table(self.changes_folder, CHANGES_SCHEMA)
        require_columns(self._changes, CHANGES_SCHEMA)
        self._epochs = open_table(root / EPOCHS, EPOCHS_SCHEMA)
        self._relations = RelationStore(root)
        # Held while the log gets a commit, or its folder loses files.
        self.committing: AbstractContextManager[object] = threading.RLock()
        self._upkeep = LogUpkeep(self, MaintenanceLedger(root), grace_s)
        # For each table: the version that this object rewrote last, and the state of the folder of
        # commits after that.
        self._rewritten: dict[LakePlace, tuple[int, tuple[int, int] | None]] = {}

    @classmethod
    def of(cls, settings: Settings) -> Log:
        """The log of a configuration. Raises: StagingError."""
        subscription = Subscription.of(settings.source)
        return cls(
            settings.lake.root,
            spool=settings.lake.spool,
            subscription=subscription,
            grace_s=settings.lake.grace,
        )

    def read_epoch(self) -> Epoch | None:
        """The newest incarnation of the slot; None before the first run."""
        return choose_newest(read_rows(self._epochs))

    def begin_epoch(self, epoch: Epoch) -> None:
        """Record a new incarnation of the slot. Raises: StagingError."""
        row = {name: getattr(epoch, name) for name in EPOCHS_SCHEMA.names}
        rows = pa.Table.from_pylist([row], schema=EPOCHS_SCHEMA)
        append_rows(self._epochs, self._root / EPOCHS, rows)

    def read_staged(self, epoch: Epoch) -> Lsn:
        """The staged LSN of an epoch, read from the newest version on disk.

        Afterwards this object has the newest versions of the log's tables, with the commits of
        other writers. All of these are durable.
        """
        with staging_errors("read the staged LSN"):
            self._changes = reopen_table(self.changes_folder)
            staged = find_staged(self._changes, epoch)
        self._relations.reload((epoch.epoch, staged))
        # Rewrite after reading: what was read must be durable, even if it came a moment ago.
        self._rewrite_newest()
        return staged

    def read_log_time_us(self) -> int:
        """The newest log time of the version that `read_staged` opened last; 0 if it is empty."""
        return self._changes.transaction_version(LOG_TIME_APP) or 0

    def read_subscription(self) -> Subscription | None:
        """The publications and the origin of the newest changes; None if there are no changes."""
        with staging_errors("read the log's newest commit"):
            return read_subscription(self.changes_folder, self._changes.version())

    def latest_relation(self, oid: int) -> Relation | None:
        """The newest stored relation of a table; None without one."""
        return self._relations.latest(oid)

    def store_relations(self, relations: Iterable[tuple[Relation, Lsn]], *, epoch: int) -> None:
        """Write the relations that are not stored yet. Raises: StagingError."""
        self._relations.store(relations, epoch=epoch)

    def remove_leftovers(self, epoch: Epoch, staged: Lsn) -> None:
        """Remove files from the spool, and relations of transactions that the log does not have.

        Both are of earlier runs. Only the holder of the slot may call this. Raises: StagingError.
        """
        self._relations.remove_unlanded(epoch.epoch, staged)
        with staging_errors("empty the spool"):
            self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._spool.chmod(0o700)
            for left in self._spool.glob("part-*.parquet"):
                left.unlink()
            ChunkFolder(self._spool).empty()

    def open_spool(self) -> PartWriter:
        """Open a part in the spool, for a transaction that still arrives."""
        return PartWriter(self._spool)

    def write_part(self, changes: pa.Table) -> Part:
        """Write changes to a part that no reader sees yet. Raises: OSError."""
        return write_part(self.changes_folder, changes)

    def append(self, parts: Sequence[Part], *, epoch: Epoch, end_lsn: Lsn) -> None:
        """Commit parts that reach `end_lsn` durably, all of them or none.

        Raises: StagingError if the storage refuses or another writer's commit came between;
        OSError. The log may have the commit even after an error: ask `has_landed`.
        """
        with self.committing:
            landed = [move_part(part, self.changes_folder) for part in parts]
            self.changes_folder.sync()
            log_time_us = max(int(part.bounds["log_time"][1] or 0) for part in landed)
            reach("before_delta_commit")
            with staging_errors("commit to the log"):
                self._commit(
                    [self._add(part, is_new=True) for part in landed],
                    [
                        Transaction(epoch.application, int(end_lsn)),
                        Transaction(LOG_TIME_APP, log_time_us),
                    ],
                    self.subscription,
                )
        reach("after_delta_commit")

    def tend(self, epoch: int, confirmed: Lsn) -> bool:
        """Trim, compact or clean the log a little; return whether there may be more to do at once.

        `confirmed` is what the slot has confirmed in the epoch. Raises: StagingError.
        """
        return self._upkeep.do_step(epoch, confirmed)

    def open_newest(self) -> DeltaTable:
        """The log at the version that this object read or wrote last, as a table of its own."""
        with staging_errors("open the log"):
            return open_delta(self.changes_folder, version=self._changes.version())

    def replace_files(
        self, old: Sequence[StagedFile], new: Part | None, *, trimmed: LogPoint | None = None
    ) -> None:
        """Commit that a part takes the place of files, durably; without a part, the files just go.

        `trimmed` is the point up to which the log then lacks entries. Raises: StagingError if the
        storage refuses, or if another commit came between; then the log has not changed, or all of
        the change has happened.
        """
        actions = [
            RemoveAction(path=file.name, data_change=new is None, deletion_timestamp=_now_ms())
            for file in old
        ]
        with self.committing, staging_errors("commit to the log"):
            added = [] if new is None else [self._add(new, is_new=False)]
            # The commit changes no entry, so it keeps the subscription of the newest entries.
            kept = read_subscription(self.changes_folder, self._changes.version())
            points = (
                []
                if trimmed is None
                else [
                    Transaction(TRIMMED_EPOCH_APP, trimmed.epoch),
                    Transaction(TRIMMED_LSN_APP, int(trimmed.lsn)),
                ]
            )
            self.changes_folder.sync()
            self._commit([*added, *actions], points, kept or self.subscription)

    def read_trimmed(self, epoch: Epoch) -> Lsn:
        """The end LSN up to which the log of an epoch may lack transactions; 0 if it has all."""
        trimmed = self._changes.transaction_version(TRIMMED_EPOCH_APP)
        if trimmed is None or trimmed < epoch.epoch:
            return Lsn(0)
        return Lsn(self._changes.transaction_version(TRIMMED_LSN_APP) or 0)

    def has_landed(self, parts: Sequence[Part]) -> bool:
        """Whether the next version of the log has the first of these parts.

        Call this after a failed append: the commit may exist, but not be on the disk. If it exists,
        this writes it to a new file, durably.
        Raises: Fenced if that version is another writer's; StagingError.
        """
        with self.committing, staging_errors("read the log's newest commit"):
            extended = self._changes.version() + 1
            commit = locate_commit(self.changes_folder, extended)
            if not commit.exists():
                return False
            named = {
                action["add"]["path"]
                for action in map(json.loads, commit.read_text().splitlines())
                if "add" in action
            }
            if parts[0].path.name not in named:
                raise Fenced
            self._rewrite_commit(extended)
            self._changes.load_as_version(extended)
        return True

    def read_transactions(self, epoch: Epoch, *, since: Lsn) -> Iterator[TransactionId]:
        """The transactions in the log from commit LSN `since` on, in commit order."""
        columns = ["commit_lsn", "xid", "committed_at"]
        with staging_errors("read the staged transactions"):
            held: pa.Table | None = None
            scanner = self._changes.to_pyarrow_dataset().scanner(
                columns=columns,
                filter=(ds.field("commit_lsn") >= int(since)) & (ds.field("epoch") == epoch.epoch),
                batch_size=65536,
            )
            for batch in scanner.to_batches():
                found = pa.Table.from_batches([batch])
                merged = found if held is None else pa.concat_tables([held, found])
                held = merged.group_by(columns).aggregate([])
        if held is None:
            return
        held = held.sort_by("commit_lsn")
        for lsn, xid, at in zip(
            held.column("commit_lsn").to_pylist(),
            held.column("xid").to_pylist(),
            pc.cast(held.column("committed_at"), pa.int64()).to_pylist(),
            strict=True,
        ):
            yield TransactionId(Lsn(lsn), xid, at)

    def _add(self, part: Part, *, is_new: bool) -> AddAction:
        return AddAction(
            path=part.path.name,
            size=(self.changes_folder / part.path.name).read_size(),
            partition_values={},
            modification_time=_now_ms(),
            data_change=is_new,
            stats=part.statistics(),
        )

    def _commit(
        self,
        actions: Sequence[AddAction | RemoveAction],
        points: Sequence[Transaction],
        subscription: Subscription,
    ) -> None:
        """Commit to the version that this object is at, durably. Raises: DeltaError, OSError."""
        extended, commit_id = self._changes.version() + 1, make_commit_id()
        try:
            self._changes.create_write_transaction(
                [*actions],
                "append",
                self._changes.schema(),
                commit_properties=CommitProperties(
                    custom_metadata=subscription.describe() | commit_id,
                    app_transactions=[*points],
                    max_commit_retries=0,
                ),
                # The upkeep removes old commits, after it has recorded what they removed.
                post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
            )
        except CommitFailedError:
            # The store may have made the commit, and its reply may be lost.
            if not is_own_commit(self.changes_folder, extended, commit_id):
                raise
        for file in list_commit(self.changes_folder, extended):
            file.sync()
        (self.changes_folder / DELTA_LOG).sync()
        # Exactly the version just written: a newer one would hide another writer's commit.
        self._changes.load_as_version(extended)

    def _rewrite_newest(self) -> None:
        """Write the newest commit of each table to new files, durably.

        The session that made a commit may have ended before the disk had it, or because the disk
        refused it. The parts that a commit of changes names are durable.
        """
        epochs, relations = self._root / EPOCHS, self._root / RELATIONS
        rewrites: list[tuple[LakePlace, int, Callable[[int], None]]] = [
            (self.changes_folder, self._changes.version(), self._rewrite_commit),
            (epochs, read_version(epochs), partial(rewrite_newest, epochs)),
            (relations, self._relations.version, partial(rewrite_newest, relations)),
        ]
        with staging_errors("write the log's newest commits"):
            for table, version, rewrite in rewrites:
                self._rewrite_unless_known(table, version, rewrite)

    def _rewrite_unless_known(
        self, table: LakePlace, version: int, rewrite: Callable[[int], None]
    ) -> None:
        """Call `rewrite` with a version, unless this object did so and nothing changed since.

        A run reads the staged LSN before and after it takes the slot, and other writers seldom
        commit in between. If the commit has a checkpoint, this always calls `rewrite`: another
        process may have written the checkpoint after the last call.
        """
        commits = table / DELTA_LOG
        is_known = self._rewritten.get(table) == (version, commits.read_change())
        if not is_known or (table / name_checkpoint(version)).exists():
            rewrite(version)
            self._rewritten[table] = version, commits.read_change()

    def _rewrite_commit(self, version: int) -> None:
        remove_old_copies(self.changes_folder / DELTA_LOG)
        for file in list_commit(self.changes_folder, version):
            file.rewrite()
        (self.changes_folder / DELTA_LOG).sync()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
