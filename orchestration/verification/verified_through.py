"""Check `verified_through` of every table, and the schedule of the job that evaluates it."""

import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from cdc_core.settings import Settings
from cdc_core.staging.verifications import (
    DIFFERENT,
    EQUAL,
    TableVerification,
    VerificationLedger,
    Verified,
)
from cdc_core.vocabulary import TableName
from orchestration.runs.due_schedule import build_due_schedule
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.relaunch import (
    find_time_left,
    is_dated_ahead,
)
from orchestration.verification.answer import describe_range
from orchestration.verification.healing import VerificationResult, verify_and_heal
from spark_jobs.lake.lake import Lake, open_table

JOB_NAME = "verify"
CHECK_NAME = "verified_through"
_SHOWN_RANGES = 20


def build_verification(
    settings: Settings, tables: Sequence[TableName]
) -> dg.AssetChecksDefinition | None:
    """The check of every table, evaluated together at one LSN; None without tables."""
    if not tables:
        return None
    asset_keys = AssetKeys.of(settings)
    keys = {asset_keys.find_table(table): table for table in tables}

    @dg.multi_asset_check(
        name="verify_tables",
        specs=[
            dg.AssetCheckSpec(
                CHECK_NAME,
                asset=key,
                description=(
                    "Every row and value of the table equals the source, both read at one LSN."
                    " Large tables are compared a part at a time, in rotation."
                ),
            )
            for key in keys
        ],
        can_subset=True,
        config_schema={
            "heal": dg.Field(
                bool,
                default_value=False,
                description="Read the rows that differ again, then compare again.",
            ),
            "whole": dg.Field(
                bool,
                default_value=False,
                description="Compare large tables whole, not only the next part of each.",
            ),
        },
    )
    def verify_tables(
        context: dg.AssetCheckExecutionContext, spark: LazyPySparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        config = context.op_execution_context.op_config
        selected = [keys[key.asset_key] for key in context.selected_asset_check_keys]
        verdicts: list[VerificationResult] = []

        def work(stop: threading.Event) -> None:
            verdicts.append(
                verify_and_heal(
                    settings,
                    spark.spark_session,
                    sorted(selected),
                    is_healing=config["heal"],
                    stop=stop,
                    tell=context.log.info,
                    is_rotating=not config["whole"],
                )
            )

        host_loop(context.op_execution_context, work, most_s=None)
        standings = VerificationLedger(settings.lake.root).read_table_verifications()
        for found in verdicts[0].tables:
            key = asset_keys.find_table(found.table)
            metadata = describe_found(found, standings.get(str(found.table)))
            # The page plots every number of an observation over time.
            context.op_execution_context.log_event(dg.AssetObservation(key, metadata=metadata))
            yield dg.AssetCheckResult(
                passed=found.result == EQUAL,
                asset_key=key,
                check_name=CHECK_NAME,
                severity=(
                    dg.AssetCheckSeverity.ERROR
                    if found.result == DIFFERENT
                    else dg.AssetCheckSeverity.WARN
                ),
                metadata=metadata,
            )

    return verify_tables


def build_verify_schedule(settings: Settings, tables: Sequence[TableName]) -> dg.ScheduleDefinition:
    """The schedule that verifies all tables when a table's last verification is too old."""

    def explain_wait(now: float) -> str | None:
        last = find_last(settings, tables, now=now)
        if last is None:
            return "nothing was staged yet"
        left = find_time_left(last.timestamp(), settings.verify.every, now=now)
        return f"due in {left:.0f} s" if left > 0 else None

    return build_due_schedule(
        settings,
        name="verify_in_rotation",
        job_name=JOB_NAME,
        doing="verifies",
        description=(
            "Checks every minute whether a table's last verification is older than [verify] every."
            " If so, it verifies all tables. It never starts a second verification while one runs."
        ),
        explain_wait=explain_wait,
    )


def find_last(settings: Settings, tables: Sequence[TableName], *, now: float) -> datetime | None:
    """The time of the oldest of the tables' last verifications; None without a log.

    A table that was never verified counts from when the log began. So does a table whose last
    verification a wrong clock has dated far ahead.
    """
    epochs = open_table(Lake.of(settings).epochs)
    if epochs is None:
        return None
    started = epochs.to_pyarrow_table(columns=["started_at"]).column(0).to_pylist()
    began = min(started, default=datetime.now(UTC))
    standings = VerificationLedger(settings.lake.root).read_table_verifications()
    moments = [standings[str(t)].at if str(t) in standings else began for t in tables]
    past = [began if is_dated_ahead(at.timestamp(), now=now) else at for at in moments]
    return min(past, default=began)


def describe_found(found: Verified, standing: TableVerification | None) -> dict[str, Any]:
    """What a verification found of a table, without what is not known."""
    lsn = None if standing is None else standing.lsn
    since = None if standing is None else standing.since
    metadata: dict[str, Any] = {
        "result": found.result,
        "reason": found.reason,
        "lsn": str(found.lsn),
        "verified_through": lsn and str(lsn),
        "covered_since": since and since.isoformat(timespec="seconds"),
        "covered_percent": found.coverage and round(100 * found.coverage, 2),
        "source_rows": found.source and found.source.rows,
        "lake_rows": found.lake and found.lake.rows,
        "ranges_different": len(found.ranges),
        "keys_different": sum(one.keys or 0 for one in found.ranges),
        "rows_with_holes": sum(one.holes for one in found.ranges),
        "healed": found.healed,
        "seconds": found.seconds,
    }
    if found.ranges:
        shown = [describe_range(found.ordering, one) for one in found.ranges[:_SHOWN_RANGES]]
        metadata["ranges"] = dg.MetadataValue.json(shown)
    return {name: value for name, value in metadata.items() if value is not None}
