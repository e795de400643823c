"""Asset `maintenance`, its check `space`, and the schedule of the job that materializes it."""

import threading
from collections.abc import Iterator
from typing import Any

import dagster as dg

from cdc_core.settings import Settings
from cdc_core.staging.maintenance import MaintenanceLedger, MaintenanceReport
from orchestration.maintenance.maintenance import run_maintenance
from orchestration.runs.due_schedule import build_due_schedule
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.relaunch import find_time_left
from spark_jobs.lake.lake import Lake, open_table

JOB_NAME = "maintain"
CHECK_NAME = "space"


def build_maintenance_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset whose materialization maintains the lake; its check is a part of that."""
    own = AssetKeys.of(settings).maintenance

    @dg.asset(
        key=own,
        description=(
            "Drops cuts that [lake] retention and [maintenance] do not keep, compacts small files,"
            " and removes files that nobody reads any more. Capture then trims the log."
        ),
        group_name="ledger",
        kinds={"deltalake"},
        check_specs=[
            dg.AssetCheckSpec(
                CHECK_NAME,
                asset=own,
                description="The last maintenance found no problem.",
            )
        ],
    )
    def maintenance(
        context: dg.AssetExecutionContext,
    ) -> Iterator[dg.MaterializeResult[None] | dg.AssetCheckResult]:
        reports: list[MaintenanceReport] = []

        def work(stop: threading.Event) -> None:
            del stop  # Each step is short, and a killed one is done again.
            reports.append(run_maintenance(settings, tell=context.log.info))

        host_loop(context.op_execution_context, work, most_s=None)
        (report,) = reports
        yield dg.MaterializeResult(metadata=describe_space(report))
        yield dg.AssetCheckResult(
            passed=not report.problems,
            check_name=CHECK_NAME,
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"problems": dg.MetadataValue.md("\n".join(f"- {p}" for p in report.problems))}
            if report.problems
            else {},
        )

    return maintenance


def build_maintain_schedule(settings: Settings) -> dg.ScheduleDefinition:
    """The schedule that maintains the lake when the last maintenance is too old."""

    def explain_wait(now: float) -> str | None:
        if open_table(Lake.of(settings).cuts) is None:
            return "no cut was written yet"
        report = MaintenanceLedger(settings.lake.root).read_newest()
        last = None if report is None else report.at.timestamp()
        left = find_time_left(last, settings.maintenance.every, now=now)
        return f"due in {left:.0f} s" if left > 0 else None

    return build_due_schedule(
        settings,
        name="maintain_lake",
        job_name=JOB_NAME,
        doing="maintains",
        description=(
            "Checks every minute whether the last maintenance is older than [maintenance] every. If"
            " so, it maintains the lake. It never starts a second run while one of its own runs."
        ),
        explain_wait=explain_wait,
    )


def describe_space(report: MaintenanceReport) -> dict[str, Any]:
    """What the page shows of a maintenance; it plots each number over time."""
    oldest, at, floor = report.oldest_cut, report.oldest_cut_at, report.floor
    metadata: dict[str, Any] = {
        "files": report.files,
        "bytes": report.needed_bytes + report.young_bytes + report.log_bytes,
        "bytes_of_tables": report.needed_bytes,
        "bytes_of_log": report.log_bytes,
        "bytes_that_go_after_the_grace": report.young_bytes,
        "removed_files": report.removed_files,
        "removed_bytes": report.removed_bytes,
        "compacted_tables": report.compacted_tables,
        "cuts": report.cuts,
        "dropped_cuts": report.dropped_cuts,
        "oldest_cut": at and at.isoformat(timespec="seconds"),
        "oldest_cut_hours": at and round((report.at - at).total_seconds() / 3600, 2),
        "oldest_readable_lsn": oldest and str(oldest.lsn),
        "oldest_readable_lsn_number": oldest and int(oldest.lsn),
        "log_floor": floor and str(floor.lsn),
        "log_held_by": report.holder,
        "seconds": round(report.seconds, 2),
    }
    return {name: value for name, value in metadata.items() if value is not None}
