"""Opens the tables of a lake, and says how far each stage has come, and who may commit to a table.

Reads with delta-rs: no JVM, milliseconds. A bound is an epoch and an end LSN. Bounds compare by
epoch first, then by LSN.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_layout import (
    BACKFILLS,
    CHANGES,
    CUTS,
    DROPPED_CUTS,
    EPOCHS,
    MAINTENANCE,
    REBUILD,
    RELATIONS,
    STATES,
    TRIMMED_EPOCH_APP,
    TRIMMED_LSN_APP,
    VERIFICATIONS,
    name_lock,
    name_target,
)
from cdc_core.lake_storage.arrow_files import read_footer
from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.locks import hold_lock
from cdc_core.lake_storage.place import LakePlace
from cdc_core.settings import Settings, TableSettings
from cdc_core.table_patterns import choose_rule
from cdc_core.targets import Target, list_targets
from cdc_core.vocabulary import Lsn, Relation, TableMode, TableName

Losses = dict[str, int]

_LOSSES = "walgate.lossy"
# How many commits to search. Commits of others, such as OPTIMIZE, change no row and have no counts.
_COMMITS_BACK = 50


@dataclass(frozen=True, slots=True, order=True)
class Bound:
    """How far something has come in the log: every transaction that ends at or below it."""

    epoch: int
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class Epoch:
    """One incarnation of the replication slot."""

    number: int
    system_id: str
    first_lsn: Lsn

    @property
    def app(self) -> str:
        """The id under which Delta commits carry an end LSN of this epoch."""
        return f"walgate:{self.system_id}:{self.number}"


@dataclass(frozen=True, slots=True)
class Lake:
    """A lake's root, and the settings' rules for tables.

    If a target is `rebuilding`, its folder is the one in which it is built again.
    """

    root: LakePlace
    rules: Mapping[str, TableSettings] = field(default_factory=dict)
    rebuilding: Target | None = None

    @classmethod
    def of(cls, settings: Settings) -> Lake:
        """Return the lake of some settings."""
        return cls(settings.lake.root, settings.tables)

    @property
    def changes(self) -> LakePlace:
        """The log."""
        return self.root / CHANGES

    @property
    def epochs(self) -> LakePlace:
        """The incarnations of the log's slot."""
        return self.root / EPOCHS

    @property
    def relations(self) -> LakePlace:
        """The relations of the log's changes."""
        return self.root / RELATIONS

    @property
    def backfills(self) -> LakePlace:
        """The ledger of backfills."""
        return self.root / BACKFILLS

    @property
    def cuts(self) -> LakePlace:
        """The ledger of cuts."""
        return self.root / CUTS

    @property
    def dropped_cuts(self) -> LakePlace:
        """The cuts that the ledger of cuts no longer has."""
        return self.root / DROPPED_CUTS

    @property
    def verifications(self) -> LakePlace:
        """The ledger of verifications."""
        return self.root / VERIFICATIONS

    @property
    def maintenance(self) -> LakePlace:
        """The ledger of maintenances."""
        return self.root / MAINTENANCE

    @property
    def ledgers(self) -> list[LakePlace]:
        """All ledgers. Maintenance compacts and cleans them."""
        return [
            *(self.cuts, self.dropped_cuts, self.states),
            *(self.backfills, self.verifications, self.maintenance),
        ]

    @property
    def states(self) -> LakePlace:
        """The ledger of table states."""
        return self.root / STATES

    def choose_types(self, table: TableName) -> Mapping[str, str]:
        """Return the types that the settings choose for columns of a table, by column name."""
        found = choose_rule(self.rules, table, having=lambda rule: rule.types)
        return {} if found is None else found[1].types

    def choose_modes(self, table: TableName) -> tuple[TableMode, ...]:
        """Return the modes that the settings choose for a table."""
        found = choose_rule(self.rules, table, having=lambda rule: rule.modes)
        return (TableMode.CURRENT,) if found is None else found[1].modes

    def choose_targets(self, table: TableName) -> list[Target]:
        """Return the targets that the settings choose for a table."""
        return list_targets(table, self.choose_modes(table))

    def find_append_retention(self, table: TableName) -> float | None:
        """Return the seconds for which the lake keeps entries of a table; None: no limit."""
        found = choose_rule(
            self.rules, table, having=lambda rule: rule.append_retention is not None
        )
        return None if found is None else found[1].append_retention

    def wants_deletion_vectors(self, table: TableName) -> bool:
        """Whether the settings turn on deletion vectors for a table. Not all readers know them."""
        found = choose_rule(
            self.rules, table, having=lambda rule: rule.deletion_vectors is not None
        )
        # The files of a target that was built again are moved, and deletion vectors are not.
        return self.rebuilding is None and found is not None and found[1].deletion_vectors is True

    def locate(self, table: TableName) -> LakePlace:
        """The folder of a table's rows."""
        return self.locate_target(Target(table))

    def locate_target(self, target: Target) -> LakePlace:
        """The folder of a target."""
        folder = self.root / name_target(target)
        return folder / REBUILD if target == self.rebuilding else folder

    def read_epochs(self) -> list[Epoch]:
        """Read every epoch that has its slot, oldest first."""
        epochs = open_table(self.epochs)
        if epochs is None:
            return []
        rows = epochs.to_pyarrow_table(columns=["epoch", "system_id", "first_lsn"]).to_pylist()
        # An epoch has one more row for each promotion that capture followed. If two recoveries ran
        # at once, the later slot is the one that exists.
        rows.sort(key=lambda row: (row["epoch"], row["first_lsn"]))
        found = {
            row["epoch"]: Epoch(row["epoch"], row["system_id"], Lsn(row["first_lsn"]))
            for row in rows
            if row["first_lsn"]
        }
        return list(found.values())

    def read_relations(self) -> dict[int, Relation]:
        """Read every relation that was announced, by relation version."""
        relations = open_table(self.relations)
        if relations is None:
            return {}
        rows = relations.to_pyarrow_table().to_pylist()
        return {row["relation_version"]: Relation.from_description(row) for row in rows}

    def read_oids(self, epoch: Epoch) -> dict[TableName, int]:
        """Read the oid under which an epoch announced each table last."""
        relations = open_table(self.relations)
        if relations is None:
            return {}
        columns = ["epoch", "first_lsn", "ordinal", "oid", "schema", "name"]
        rows = relations.to_pyarrow_table(columns=columns).to_pylist()
        own = [row for row in rows if row["epoch"] == epoch.number]
        own.sort(key=lambda row: (int(row["first_lsn"]), int(row["ordinal"])))
        return {TableName(row["schema"], row["name"]): row["oid"] for row in own}

    def read_staged(self, epochs: list[Epoch]) -> Bound | None:
        """Read how far the log reaches; None before anything was staged."""
        log = open_table(self.changes)
        return None if log is None else find_staged(log, epochs)

    def lock_table(self, name: str, *, jvm: int | None) -> AbstractContextManager[None]:
        """Lock a table against other processes' commits. Raises: MergeError if one has the lock."""
        own = name if name != str(self.rebuilding) else f"{name} (new)"
        return hold_lock(self.root / name_lock(own), own, jvm=jvm)


def open_table(path: LakePlace) -> DeltaTable | None:
    """Open a Delta table at its newest version; None if it does not exist."""
    try:
        return open_delta(path)
    except TableNotFoundError:
        return None


def count_rows(folder: LakePlace, table: DeltaTable) -> int:
    """Count the rows of a Delta table at the handle's version, without reading rows.

    The count of each file comes from its statistics or its footer. Rows in deletion vectors are
    subtracted.
    """
    files = pa.table(table.get_add_actions()).select(["path", "num_records"]).to_pylist()
    entries = 0
    for file in files:
        known = file["num_records"]
        if known is None:  # Its writer collected no statistics.
            known = read_footer(folder / unquote(file["path"])).num_rows
        entries += known
    for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()):
        kept = batch.column("selection_vector").flatten()
        entries -= len(kept) - (pc.sum(kept).as_py() or 0)
    return entries


def read_losses(table: DeltaTable) -> Losses | None:
    """Read, by column, how many values only `_raw` holds; None if they are not known.

    The newest commit that mentions counts decides. It may say that nothing was counted.
    """
    for commits in (1, _COMMITS_BACK):
        for commit in table.history(commits):
            try:
                told = json.loads(commit.get("userMetadata") or "{}")
            except ValueError:
                continue
            if isinstance(told, dict) and _LOSSES in told:
                losses: Losses | None = told[_LOSSES]
                return losses
    return None


def format_losses(losses: Losses | None) -> str:
    """Return the user metadata of a commit after which a table has these counts.

    None says that nothing was counted.
    """
    return json.dumps({_LOSSES: losses}, sort_keys=True)


def find_bound(table: DeltaTable, epochs: list[Epoch]) -> Bound | None:
    """Read the bound of a Delta table from its app transactions; None if it has none."""
    for epoch in reversed(epochs):
        lsn = table.transaction_version(epoch.app)
        if lsn is not None:
            return Bound(epoch.number, Lsn(lsn))
    return None


def find_staged(log: DeltaTable, epochs: list[Epoch]) -> Bound | None:
    """Read how far an open log reaches; None before anything was staged.

    If nothing of the newest epoch was staged, the log reaches to the beginning of this epoch.
    """
    found = find_bound(log, epochs)
    if found is None or found.epoch == epochs[-1].number:
        return found
    return Bound(epochs[-1].number, epochs[-1].first_lsn)


def find_trimmed(log: DeltaTable) -> Bound | None:
    """Read the bound up to which the log lacks entries; None if capture never trimmed it."""
    epoch = log.transaction_version(TRIMMED_EPOCH_APP)
    lsn = log.transaction_version(TRIMMED_LSN_APP)
    return None if epoch is None or lsn is None else Bound(epoch, Lsn(lsn))


def require_epochs(lake: Lake) -> list[Epoch]:
    """Read every epoch. Raises: LakeError if there is none, so that nothing was ever staged."""
    epochs = lake.read_epochs()
    if not epochs:
        raise LakeError(
            f"there is no log in {lake.root}",
            fix="check [lake] root, or run `walgate replicate` first",
            retry=Retry.AFTER_FIX,
        )
    return epochs
