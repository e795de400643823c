"""Gives the lake of a test a configuration, so that `walgate.open` finds it."""

from __future__ import annotations

from pathlib import Path

import walgate
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.backfills import BackfillLedger, Begun
from cdc_core.table_states import BackfillState
from cdc_core.vocabulary import Lsn, Position, Relation
from orchestration.cli.template import format_configuration
from tests.lakes import path_of


def configure(root: LakePlace) -> Path:
    """Write a configuration beside a lake. Its source is nowhere, since nothing may connect."""
    folder = path_of(root)
    file = folder.parent / "walgate.toml"
    text = format_configuration(
        dsn="host=/nowhere", slot="walgate", publication="walgate", root=folder.name
    )
    file.write_text(text)
    return file


def open_lake(root: LakePlace) -> walgate.Lake:
    """Open a lake as a user does."""
    return walgate.open(configure(root))


def record_backfill(root: LakePlace, relation: Relation, *, start: int, swept: int) -> None:
    """Record that a whole backfill of a table began at an LSN, and ended at another."""
    ledger = BackfillLedger(root)
    begun = Begun(f"of {relation.table}", relation.table, Position(1, Lsn(start), 0))
    ledger.record_begun(begun, 1)
    ledger.record_state(begun, BackfillState.DONE, swept=Lsn(swept))
