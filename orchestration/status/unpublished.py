"""Tables of the lake that no publication holds now: what happened to each, and what to do.

An oid identifies a table only on the server and in the epoch in which the log announced it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cdc_core.table_states import TableState
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import StateRecord

_NOTHING = "nothing must be done"


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The oids under which the log has announced tables, and their names in the source now."""

    announced: Mapping[TableName, int]
    named: Mapping[int, TableName]

    def explain(self, name: str, published: Collection[str]) -> StateRecord:
        """The state of a table that is not published, with the reason and the fix."""
        table = TableName.parse(name)
        oid = self.announced.get(table)
        if oid is None:
            reason = "no publication has it: it was removed, renamed or dropped"
            return _halt(table, reason, _publish_again(table))
        now = self.named.get(oid)
        if now == table:
            return _halt(table, "no publication has it any more", _publish_again(table))
        if now is not None and str(now) in published:
            reason = f"it was renamed to {now}, which is replicated under that name"
            return _halt(table, reason, f"query {now}; {_NOTHING}")
        if now is not None:
            reason = f"it was renamed to {now}, which no publication has"
            fix = f"to replicate {now}, run `walgate publish '{now}'`; otherwise {_NOTHING}"
            return _halt(table, reason, fix)
        if table in self.named.values():
            reason = "it was dropped and made again, and no publication has the new table"
            return _halt(table, reason, _publish_again(table))
        return _halt(table, "it was dropped in the source", _NOTHING)


def find_unpublished(
    lake: Lake, *, system_id: str, published: Collection[str]
) -> dict[TableName, int]:
    """The unpublished tables that the log announced in its newest epoch, with their oids.

    Empty if that epoch is of another server.
    """
    epochs = lake.read_epochs()
    if not epochs or epochs[-1].system_id != system_id:
        return {}
    announced = lake.read_oids(epochs[-1])
    return {table: oid for table, oid in announced.items() if str(table) not in published}


def _halt(table: TableName, reason: str, fix: str) -> StateRecord:
    return StateRecord(str(table), TableState.HALTED, f"{reason}; its rows stay in the lake", fix)


def _publish_again(table: TableName) -> str:
    return (
        f"to replicate it again, run `walgate publish '{table}'`, and a backfill reads it whole;"
        f" otherwise {_NOTHING}"
    )
