"""What is asked of a running backfill by other processes: to pause, to go on, to end.

An order is a row of `ledger/backfills`, so that it needs nothing else to be up and stays on record.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from cdc_core.staging.backfills import BackfillState
from cdc_core.staging.commits import Commits
from cdc_core.staging.tables import staging_errors

_ORDERS = [BackfillState.PAUSED, BackfillState.RESUMED, BackfillState.CANCELLED]


class Orders:
    """The orders to one backfill from now on."""

    def __init__(self, root: Path, backfill: str) -> None:
        """Begin behind the newest commit; the ledger need not be there yet.

        Raises: StagingError.
        """
        self._backfill = backfill
        with staging_errors("open ledger/backfills"):
            self._commits = Commits(root / "ledger" / "backfills")

    def read(self) -> BackfillState | None:
        """The last order since the last call: paused, resumed or cancelled; None if there is none.

        Raises: StagingError.
        """
        newest: BackfillState | None = None
        with staging_errors("read the newest rows of ledger/backfills"):
            for path in self._commits.read_added():
                newest = self._read_file(path) or newest
        return newest

    def _read_file(self, path: Path) -> BackfillState | None:
        is_own = (pc.field("backfill_id") == self._backfill) & pc.field("chunk").is_null()
        is_order = pc.field("state").isin([order.value for order in _ORDERS])
        rows = pq.read_table(path, columns=["state"], filters=is_own & is_order)
        states = rows.column("state").to_pylist()
        return BackfillState(states[-1]) if states else None
