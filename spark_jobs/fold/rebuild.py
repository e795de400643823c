"""Rebuilds a halted table: a whole backfill replaces all its rows, which ends the halt.

After a whole backfill, each row of the source either was read by a chunk since the backfill began,
or has changed since. The log has both above the backfill's start. So the fold of the log from that
start on, without the old rows, is the table. The table must be able to follow all changes between
the start and the sweep. If it cannot, a chunk may be older than an ALTER of the table, and only a
backfill that begins later ends the halt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.vocabulary import Lsn, Operation, Position
from spark_jobs.fold.plan import TablePlan, as_query
from spark_jobs.lake.lake import Bound
from spark_jobs.log.ranges import summarize
from spark_jobs.log.reading import is_after


@dataclass(frozen=True, slots=True, order=True)
class _Swept:
    """The start position of a whole backfill, and the bound that its sweep ends at."""

    start: Position
    end: Bound


def plan_rebuild(
    plan: TablePlan,
    read_above: Callable[[Bound], DataFrame],
    plot: Callable[..., TablePlan],
    *,
    entries: DataFrame,
    trimmed: Bound | None,
) -> TablePlan | None:
    """Plan a halted table again, from the start of a backfill; None if no backfill ends the halt.

    A backfill that began below `trimmed`, where the log lacks entries, cannot end the halt.
    `entries` are all entries of the log range, also those that the table cannot follow.
    `read_above` reads the log above a bound, up to the end of the range. `plot` makes a table plan.
    """
    found = None
    # Rows that are deleted between two backfills stay in some modes. So the first backfill that
    # lets the table follow the whole range decides, as if rounds had ended between them.
    for renewed in list_renewed(plan, read_above, plot, entries=entries, trimmed=trimmed):
        found = renewed
        if renewed.halt is None:
            break
    return found


def list_renewed(
    plan: TablePlan,
    read_above: Callable[[Bound], DataFrame],
    plot: Callable[..., TablePlan],
    *,
    entries: DataFrame,
    trimmed: Bound | None,
    is_by_end: bool = False,
) -> Iterator[TablePlan]:
    """Plan a halted table from the start of each backfill that ends the halt.

    Order: by the starts of the backfills, or by their ends.
    """
    own = F.col("table") == str(plan.table)
    found = _find_swept(entries.where(own))
    for swept in sorted(found, key=lambda one: one.end) if is_by_end else sorted(found):
        if swept.end <= plan.upper:
            continue  # The plan reaches this sweep without a rebuild.
        start = Bound(swept.start.epoch, swept.start.commit_lsn)
        if trimmed is not None and start < trimmed:
            continue
        log = read_above(start)
        log = log.where(own & is_after(swept.start))
        renewed = plot(as_query(log), summaries=summarize(log), before=None)
        if renewed.upper >= swept.end:
            yield renewed


def _find_swept(entries: DataFrame) -> list[_Swept]:
    """The whole backfills whose sweeps are among some entries."""
    sweeps = entries.where(F.col("op") == Operation.SWEEP.value)
    found: list[_Swept] = []
    for row in sweeps.select("epoch", "end_lsn", "detail").distinct().collect():
        said = json.loads(row["detail"])
        epoch, commit_lsn, seq = said["start"]
        is_whole = said.get("low") is None and said.get("high") is None
        # Changes between two slots are lost, so both ends must be in one epoch.
        if is_whole and epoch == row["epoch"]:
            start = Position(epoch, Lsn(commit_lsn), seq)
            found.append(_Swept(start, Bound(row["epoch"], Lsn(row["end_lsn"]))))
    return found
