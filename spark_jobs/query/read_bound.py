"""Finds the bound at which a query reads. Uses delta-rs and Arrow: no JVM."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

from cdc_core.errors import LakeError, Retry
from cdc_core.read_point import ReadPoint
from cdc_core.vocabulary import Lsn, format_time
from spark_jobs.lake.lake import Bound, Epoch, Lake, require_epochs
from spark_jobs.lake.ledger import find_cut, find_oldest_bound
from spark_jobs.log.files import LogFiles
from spark_jobs.log.log_time import find_bound_at_time, make_begins_later_error


def find_bound_at(lake: Lake, point: ReadPoint) -> Bound:
    """Find the bound of `latest` (the newest cut), `live` (the staged LSN), an LSN or a time.

    Raises: LakeError if the lake cannot be read there; it names what can be read.
    """
    epochs = require_epochs(lake)
    if point == "latest":
        return _find_latest(lake)
    log = LogFiles.open(lake)
    staged = None if log is None else log.find_staged(epochs)
    if log is None or staged is None:
        raise LakeError(
            "nothing was staged yet", fix="run `walgate replicate` first", retry=Retry.AFTER_FIX
        )
    if point == "live":
        return staged
    oldest = None if log.trimmed is None else find_oldest_bound(lake)
    if isinstance(point, Lsn):
        return _find_bound_of_lsn(log, epochs, staged, point, oldest)
    assert isinstance(point, datetime)
    bound = find_bound_at_time(log, point)
    if oldest is not None and (bound is None or bound < oldest):
        raise _make_dropped_error(lake, format_time(point), oldest)
    if bound is None:
        raise make_begins_later_error(log, point)
    return _require_inside_epoch(log, epochs, bound, point)


def _make_dropped_error(lake: Lake, point: str, oldest: Bound) -> LakeError:
    """The error for a point below the oldest cut, of a log that lacks what came before."""
    cut = find_cut(lake, oldest)
    at = None if cut is None else cut.committed_at
    time = "" if at is None else f", or a time from {format_time(at)} on"
    return LakeError(
        f"the lake cannot be read at {point}: [lake] retention keeps it from {oldest.lsn} on",
        fix=f"give an LSN from {oldest.lsn} on{time}; a longer retention keeps more from now on",
        retry=Retry.AFTER_FIX,
    )


def _find_latest(lake: Lake) -> Bound:
    cut = find_cut(lake)
    if cut is None:
        raise LakeError(
            "no cut was written yet", fix="run `walgate merge` first", retry=Retry.AFTER_FIX
        )
    return cut.bound


def _find_bound_of_lsn(
    log: LogFiles, epochs: list[Epoch], staged: Bound, lsn: Lsn, oldest: Bound | None
) -> Bound:
    """The bound of an LSN in the newest epoch that has it. A newer epoch may have smaller LSNs.

    Nothing can be read below `oldest`, if it is not None.
    """
    readable: list[str] = []
    for epoch in reversed(epochs):
        end = staged.lsn if epoch.number == staged.epoch else _find_end(log, epoch.app)
        first = epoch.first_lsn
        if oldest is not None and oldest.epoch >= epoch.number:
            first = oldest.lsn if oldest.epoch == epoch.number else Lsn(0)
            end = end if oldest.epoch == epoch.number else None
        if end is not None and first <= lsn <= end:
            return Bound(epoch.number, lsn)
        if end is not None:
            readable.append(f"{first} to {end}")
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


def _find_end(log: LogFiles, app: str) -> Lsn | None:
    lsn = log.log.transaction_version(app)
    return None if lsn is None else Lsn(lsn)
