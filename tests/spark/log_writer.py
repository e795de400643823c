"""Writes a log as capture would: changes, relations and epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, Transaction, write_deltalake

from cdc_core.lake_layout import CHANGES, LOG_TIME_APP, TRIMMED_EPOCH_APP, TRIMMED_LSN_APP
from cdc_core.layout import CHANGES_SCHEMA, EPOCHS_SCHEMA, RELATIONS_SCHEMA
from cdc_core.staging.tables import open_table
from cdc_core.vocabulary import UNIX_START, Relation
from spark_jobs.lake.lake import Lake

SYSTEM_ID = "7301"
EPOCH_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class LogWriter:
    """A log under construction; each transaction is 8 bytes of commit record after a gap of 8."""

    lake: Lake
    epoch: int = 0
    lsn: int = 0
    pending: list[dict[str, Any]] = field(default_factory=list)
    relations: set[int] = field(default_factory=set)
    log_time: datetime = UNIX_START
    # The commit time of the next transactions. None: each has a later one than the one before.
    commit_time: datetime | None = None

    def copy_to(self, lake: Lake) -> LogWriter:
        """The writer of a copy of the lake."""
        return replace(self, lake=lake, pending=[], relations=set(self.relations))

    def begin_epoch(self, first_lsn: int) -> None:
        """A new slot incarnation."""
        self.epoch, self.lsn = self.epoch + 1, first_lsn
        row = {
            "epoch": self.epoch,
            "system_id": SYSTEM_ID,
            "timeline": 1,
            "slot": "walgate",
            "publication": "walgate",
            "first_lsn": first_lsn,
            "started_at": EPOCH_START,
            "reason": "test",
        }
        self._append("staging/epochs", [row], EPOCHS_SCHEMA)

    def announce(self, relation: Relation) -> int:
        """Write a relation once; give its version."""
        if relation.version not in self.relations:
            self.relations.add(relation.version)
            row = {
                "relation_version": relation.version,
                "epoch": self.epoch,
                "first_lsn": self.lsn,
                "ordinal": len(self.relations),
            } | relation.describe()
            self._append("staging/relations", [row], RELATIONS_SCHEMA)
        return relation.version

    def add(self, entries: Sequence[tuple[Relation, dict[str, Any]]]) -> int:
        """One transaction: each entry a relation and what differs from an empty row; its end LSN.

        A `seq` may be given, else entries are numbered from 0.
        """
        commit_lsn, end_lsn = self.lsn + 8, self.lsn + 16
        self.lsn = end_lsn
        committed_at = self.commit_time or EPOCH_START + timedelta(milliseconds=end_lsn)
        self.log_time = max(self.log_time, committed_at)
        for seq, (relation, entry) in enumerate(entries):
            row = {
                "epoch": self.epoch,
                "commit_lsn": commit_lsn,
                "seq": seq,
                "end_lsn": end_lsn,
                "xid": end_lsn // 16,
                "committed_at": committed_at,
                "log_time": self.log_time,
                "table": str(relation.table),
                "relation_version": self.announce(relation),
            }
            self.pending.append(row | entry)
        return end_lsn

    def commit(self, repeat: int = 0) -> int:
        """Land what is pending in one Delta commit; the last `repeat` entries land twice."""
        rows = sorted(self.pending, key=lambda row: (row["table"] or "", row["commit_lsn"]))
        rows += rows[-repeat:] if repeat else []
        self._append("staging/changes", rows, CHANGES_SCHEMA, staged=self.lsn)
        self.pending.clear()
        return self.lsn

    def trim(self, lsn: int) -> None:
        """Remove the entries of this epoch up to an LSN, as capture does."""
        open_table(self.lake.root / CHANGES, CHANGES_SCHEMA).delete(
            f"end_lsn <= {lsn}",
            commit_properties=CommitProperties(
                app_transactions=[
                    Transaction(TRIMMED_EPOCH_APP, self.epoch),
                    Transaction(TRIMMED_LSN_APP, lsn),
                ]
            ),
        )

    def _append(
        self, path: str, rows: list[dict[str, Any]], schema: pa.Schema, staged: int | None = None
    ) -> None:
        transactions = []
        if staged is not None:
            log_time_us = (self.log_time - UNIX_START) // timedelta(microseconds=1)
            transactions = [
                Transaction(f"walgate:{SYSTEM_ID}:{self.epoch}", staged),
                Transaction(LOG_TIME_APP, log_time_us),
            ]
        write_deltalake(
            open_table(self.lake.root / path, schema),
            pa.Table.from_pylist(rows, schema),
            mode="append",
            commit_properties=CommitProperties(app_transactions=transactions),
        )
