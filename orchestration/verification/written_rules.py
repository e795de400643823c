"""Finds exclude and hash rules that changed since a table's rows were written. Pure.

For verification. A changed rule reaches the log only with the table's next change. A merge then
halts the table (`spark_jobs/schema/evolution.py`). Until then the rows follow the old rule, and a
comparison by the new rule would not notice that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc_core.settings import TableSettings
from cdc_core.source.published_tables import PublishedTable
from spark_jobs.schema.evolution import (
    TableSchema,
    explain_excluded,
    explain_hash,
    explain_left_out,
)


def find_changed_rules(
    schema: TableSchema,
    rule: TableSettings,
    mark: str,
    published: PublishedTable,
    left_out: Iterable[int],
) -> Iterator[str]:
    """A reason for each column whose rule has changed since the table's rows were written.

    `mark` is the mark of the settings' hash key. `left_out` has the attnums of the columns that
    rules have kept from the log.
    """
    for column in schema.columns:
        if column.name in rule.exclude:
            yield explain_excluded(column.name)
            continue
        wanted = mark if column.name in rule.hash else None
        if (changed := explain_hash(column.name, column.hashed_by, wanted)) is not None:
            yield changed
    known = {column.name for column in schema.columns}
    sent = {*published.sent_columns}.difference(known, rule.exclude)
    numbers = {*schema.left_out, *left_out}
    for source in published.columns:
        if source.name in sent and numbers.intersection({source.attnum, 0}):
            yield explain_left_out(source.name)
