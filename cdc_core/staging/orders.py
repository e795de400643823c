"""Orders of other processes to a running backfill: to pause, to resume, to cancel.

An order is a row of `ledger/backfills`. So it needs no other service, and it stays on record.
"""

from __future__ import annotations

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.lake_layout import BACKFILLS
from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.staging.commits import Commits
from cdc_core.staging.tables import staging_errors
from cdc_core.table_states import BackfillState

_ORDERS = [BackfillState.PAUSED, BackfillState.RESUMED, BackfillState.CANCELLED]


class Orders:
    """The orders to one backfill from the creation of this object on."""

    def __init__(self, root: LakePlace, backfill: str) -> None:
        """Begin after the newest commit; the ledger need not exist yet.

        Raises: StagingError.
        """
        self._backfill = backfill
        with staging_errors(f"open {BACKFILLS}"):
            self._commits = Commits(root / BACKFILLS)

    def read(self) -> BackfillState | None:
        """The newest order since the last call: paused, resumed or cancelled; None without one.

        Raises: StagingError.
        """
        newest: BackfillState | None = None
        with staging_errors(f"read the newest rows of {BACKFILLS}"):
            for path in self._commits.read_added():
                newest = self._read_file(path) or newest
        return newest

    def _read_file(self, path: LakePlace) -> BackfillState | None:
        is_own = (pc.field("backfill_id") == self._backfill) & pc.field("chunk").is_null()
        is_order = pc.field("state").isin([order.value for order in _ORDERS])
        with open_input(path) as file:
            rows = pq.read_table(file, columns=["state"], filters=is_own & is_order)
        states = rows.column("state").to_pylist()
        return BackfillState(states[-1]) if states else None
