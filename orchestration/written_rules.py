"""Whether rows of the lake were written under the rule that the settings have now.

The log learns of a changed rule with the next change of the table, which halts it. Until then the
table goes on under its old rule, which a comparison by the new one would not see. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cdc_core.settings import TableSettings
from cdc_core.source.published_tables import PublishedTable
from spark_jobs.shapes import Shape, explain_excluded, explain_hash, explain_left_out


def find_changed_rules(
    shape: Shape,
    rule: TableSettings,
    mark: str,
    published: PublishedTable,
    left_out: Iterable[int],
) -> Iterator[str]:
    """Say of each column of a table what has changed since its rows were written.

    `mark` is that of the settings' hash key; `left_out` are the numbers of the columns that rules
    have kept from the log.
    """
    for column in shape.columns:
        if column.name in rule.exclude:
            yield explain_excluded(column.name)
            continue
        wanted = mark if column.name in rule.hash else None
        if (changed := explain_hash(column.name, column.hashed_by, wanted)) is not None:
            yield changed
    known = {column.name for column in shape.columns}
    sent = {*published.sent_columns}.difference(known, rule.exclude)
    numbers = {*shape.left_out, *left_out}
    for source in published.columns:
        if source.name in sent and numbers.intersection({source.attnum, 0}):
            yield explain_left_out(source.name)
