"""How often new tables get a checkpoint: seldom on a disk, often in a store."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.ledgers import append_numbered
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.place import LakePlace
from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.staging.tables import open_table

LEDGER = pa.schema({"k": pa.int64(), "number": pa.int64()})


def read_intervals(root: LakePlace) -> list[str | None]:
    """The intervals of a new table of the log, and of a new ledger."""
    log, ledger = open_table(root / "log", CHANGES_SCHEMA), root / "ledger"
    append_numbered(ledger, [{"k": 1}], LEDGER)
    tables = (log, open_delta(ledger))
    return [table.metadata().configuration.get("delta.checkpointInterval") for table in tables]


def test_a_table_on_a_disk_is_opened_cheaply_without_many(tmp_path: Path) -> None:
    assert read_intervals(LocalPlace.of(tmp_path)) == ["100", None]


def test_a_table_in_a_store_has_one_every_ten_commits(object_lake: ObjectPlace) -> None:
    assert read_intervals(object_lake) == ["10", "10"]
