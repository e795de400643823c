"""The mode `current`: a table has the rows that its source has, and nothing else.

A row that arrives replaces the row of its key. A key that departed, a sweep and a TRUNCATE remove
rows. So each row of the table is a folded row, and the quick ways may write the table.
"""

from __future__ import annotations

from cdc_core.vocabulary import TableMode
from spark_jobs.modes.mode import Mode

CURRENT = Mode(TableMode.CURRENT)
