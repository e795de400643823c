"""The mode `soft_delete`: a table has the rows of its source, and those that the source deleted.

A deleted row has the last values that a transaction left it, until a row with its key comes back.
Whatever removes a row deletes it: a DELETE, an UPDATE of its key, a TRUNCATE, or a sweep. Nobody
knows when a row that a sweep removes was deleted, only that it was before the sweep.
"""

from __future__ import annotations

from cdc_core.vocabulary import TableMode
from spark_jobs.modes.mode import KeptRows, Mode

SOFT_DELETE = Mode(TableMode.SOFT_DELETE, KeptRows("_deleted", "_deleted_at"))
