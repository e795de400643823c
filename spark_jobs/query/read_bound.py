"""Finds the bound at which a query reads. Uses delta-rs and Arrow: no JVM."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from deltalake import DeltaTable

from cdc_core.errors import LakeError, Retry
from cdc_core.read_point import ReadPoint
from cdc_core.vocabulary import Lsn, format_time
from spark_jobs.lake.lake import Bound, Epoch, Lake, require_epochs
from spark_jobs.lake.ledger import find_cut
from spark_jobs.log.files import LogFiles
from spark_jobs.log.log_time import find_bound_at_time


def find_bound_at(lake: Lake, point: ReadPoint) -> Bound:
    """Find the bound of `latest` (the newest cut), `live` (the staged LSN), an LSN or a time.

    Raises: LakeError if the lake cannot be read there; it names what can be read.
    """
    epochs = require_epochs(lake)
    if point == "latest":
        return _find_latest(lake)
    staged = lake.read_staged(epochs)
    if staged is None:
        raise LakeError(
            "nothing was staged yet", fix="run `walgate replicate` first", retry=Retry.AFTER_FIX
        )
    if point == "live":
        return staged
    if isinstance(point, Lsn):
        return _find_bound_of_lsn(lake, epochs, staged, point)
    log = LogFiles.open(lake)
    assert log is not None
    assert isinstance(point, datetime)
    return _require_inside_epoch(log, epochs, find_bound_at_time(log, point), point)


def _find_latest(lake: Lake) -> Bound:
    cut = find_cut(lake)
    if cut is None:
        raise LakeError(
            "no cut was written yet", fix="run `walgate merge` first", retry=Retry.AFTER_FIX
        )
    return cut.bound


def _find_bound_of_lsn(lake: Lake, epochs: list[Epoch], staged: Bound, lsn: Lsn) -> Bound:
    """The bound of an LSN in the newest epoch that has it. A newer epoch may have smaller LSNs."""
    readable: list[str] = []
    for epoch in reversed(epochs):
        end = staged.lsn if epoch.number == staged.epoch else _find_end(lake, epoch.app)
        if end is not None and epoch.first_lsn <= lsn <= end:
            return Bound(epoch.number, lsn)
        if end is not None:
            readable.append(f"{epoch.first_lsn} to {end}")
    # The log has nothing between two epochs.
    covered = ", or from ".join(reversed(readable))
    raise LakeError(
        f"the lake cannot be read at {lsn}: expected an LSN from {covered}",
        fix="give an LSN that the log covers",
        retry=Retry.AFTER_FIX,
    )


def _require_inside_epoch(
    log: LogFiles, epochs: list[Epoch], bound: Bound, time: datetime
) -> Bound:
    """Refuse a time after the last transaction of an epoch that ended: the source went on."""
    for epoch, successor in pairwise(epochs):
        if bound == Bound(epoch.number, Lsn(log.log.transaction_version(epoch.app) or 0)):
            raise LakeError(
                f"the lake cannot be read at {format_time(time)}: epoch {epoch.number} ended before"
                f" it, at {bound.lsn}, and the log lacks what the source committed until epoch"
                f" {successor.number} began",
                fix="give an earlier or a later time",
                retry=Retry.AFTER_FIX,
            )
    return bound


def _find_end(lake: Lake, app: str) -> Lsn | None:
    lsn = DeltaTable(lake.changes.uri).transaction_version(app)
    return None if lsn is None else Lsn(lsn)
