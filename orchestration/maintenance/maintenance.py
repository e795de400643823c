"""Runs a maintenance by the settings, records it, and finds what a person should look at."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta

from cdc_core.errors import StagingError
from cdc_core.lake_storage.store_check import require_store
from cdc_core.quantities import format_size
from cdc_core.settings import Settings
from cdc_core.staging.log_files import LogPoint
from cdc_core.staging.maintenance import MaintenanceLedger, MaintenanceReport
from cdc_core.staging.tables import staging_errors
from cdc_core.staging.verifications import VerificationLedger
from cdc_core.vocabulary import UNIX_START
from spark_jobs.lake.lake import Bound, Lake, require_epochs
from spark_jobs.log.files import LogFiles
from spark_jobs.maintenance.log_floor import RETENTION
from spark_jobs.maintenance.maintenance import Maintained, maintain
from spark_jobs.maintenance.thinning import Keeping

# So many intervals may pass between two maintenances, before that is a problem.
_MISSED_INTERVALS = 3
# A floor that was recorded so long ago should be trimmed. Capture looks every half minute, but only
# once its session has staged something.
_TIME_TO_TRIM = timedelta(hours=1)


def run_maintenance(settings: Settings, *, tell: Callable[[str], None]) -> MaintenanceReport:
    """Maintain the lake once and record what was found; return the same.

    Raises: WalgateError.
    """
    lake, ledger = Lake.of(settings), MaintenanceLedger(settings.lake.root)
    require_store(lake.root)
    require_epochs(lake)
    began = time.monotonic()
    # Files are dated by the storage's clock, and it may differ from this host's.
    now = UNIX_START + timedelta(microseconds=lake.root.read_clock_us())
    keeping = choose_keeping(settings)
    earlier = ledger.read_newest(before=now - _TIME_TO_TRIM)
    with staging_errors("maintain the lake"):
        done = maintain(lake, keeping=keeping, now=now, tell=tell)
        first_end = _find_first_end(lake)
    problems = [*_drop_old_reports(settings, before=now - max(keeping.retention, _TIME_TO_TRIM))]
    problems += _list_problems(done, earlier, first_end)
    report = _report(done, problems, now=now, seconds=time.monotonic() - began)
    ledger.record(report)
    return report


def _drop_old_reports(settings: Settings, *, before: datetime) -> Iterator[str]:
    """Drop old reports of maintenances and verifications; yield each error that prevented it."""
    root = settings.lake.root
    for ledger in (MaintenanceLedger(root), VerificationLedger(root)):
        try:
            ledger.drop_old(before)
        except StagingError as error:
            yield error.message


def _find_first_end(lake: Lake) -> Bound | None:
    """The end of the first file of the log, unless it is the newest end, which always stays."""
    log = LogFiles.open(lake)
    ends = [] if log is None else [file.end for file in log.files if file.end is not None]
    return ends[0] if ends and ends[0] < ends[-1] else None


def choose_keeping(settings: Settings) -> Keeping:
    """How long cuts are kept, by the settings."""
    lake, maintenance = settings.lake, settings.maintenance
    return Keeping(
        retention=timedelta(seconds=lake.retention),
        grace=timedelta(seconds=lake.grace),
        every_cut=timedelta(seconds=maintenance.every_cut),
        often=timedelta(seconds=maintenance.ten_minute_cuts),
    )


def find_late(
    report: MaintenanceReport | None, settings: Settings, *, now: datetime, began: datetime
) -> str | None:
    """Say that no maintenance has run for long; None if one has. The log began at `began`."""
    since = now - (began if report is None else report.at)
    if since.total_seconds() <= _MISSED_INTERVALS * settings.maintenance.every:
        return None
    hours = since.total_seconds() / 3600
    last = "never ran" if report is None else f"last ran {hours:.1f} h ago"
    return f"maintenance {last}, expected every {settings.maintenance.every / 60:g} min"


def _report(
    done: Maintained,
    problems: Iterable[str],
    *,
    now: datetime,
    seconds: float,
) -> MaintenanceReport:
    oldest = done.cuts[0] if done.cuts else None
    space = done.cleaned
    return MaintenanceReport(
        at=now,
        seconds=seconds,
        cuts=len(done.cuts),
        dropped_cuts=done.dropped_cuts,
        oldest_cut=None if oldest is None else _point(oldest.bound),
        oldest_cut_at=None if oldest is None else oldest.created_at,
        floor=None if done.floor is None else _point(done.floor.bound),
        holder=None if done.floor is None else done.floor.holder,
        files=space.needed.files + space.young.files + done.log.files,
        needed_bytes=space.needed.size,
        log_bytes=done.log.size,
        young_bytes=space.young.size,
        removed_files=space.removed.files,
        removed_bytes=space.removed.size,
        compacted_tables=len(done.compacted),
        problems=tuple(problems),
    )


def _list_problems(
    done: Maintained, earlier: MaintenanceReport | None, first_end: Bound | None
) -> Iterator[str]:
    """List what takes more space than retention and grace explain, and what was left undone."""
    yield from done.problems
    for table in done.queued:
        yield (
            f"{table} is halted, and capture may trim changes that it has not merged: only a whole"
            " backfill can end the halt"
        )
    floor, oldest = done.floor, done.cuts[0].bound if done.cuts else None
    is_held = floor is not None and floor.holder != RETENTION
    if floor is not None and oldest is not None and is_held and floor.bound < oldest:
        yield (
            f"the log is kept from {floor.bound.lsn} on, though the oldest cut is at {oldest.lsn};"
            f" held by {floor.holder} ({format_size(done.log.size)})"
        )
    known = None if earlier is None else earlier.floor
    if known is not None and first_end is not None and _point(first_end) <= known:
        yield (
            f"capture has not trimmed the log for an hour: it still has a file that ends at"
            f" {first_end.lsn}, and may be trimmed through {known.lsn}"
        )


def _point(bound: Bound) -> LogPoint:
    return LogPoint(bound.epoch, bound.lsn)
