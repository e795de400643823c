"""The rule that tells stale rows of a chunk from others, switched off."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.backfill.visibility import ChangedKeys, Snapshot


def let_all_pass(self: ChangedKeys, _: Snapshot, keys: pa.StringArray) -> Any:
    """Stand in for `ChangedKeys.find_current`."""
    del self
    return np.ones(len(keys), np.bool_)
