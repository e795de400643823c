"""Builds everything that Dagster shows and runs for one pipeline, from its settings."""

from __future__ import annotations

import dagster as dg

from cdc_core.settings import Settings
from orchestration.backfill import sensor
from orchestration.backfill.asset import build_backfill_asset
from orchestration.backfill.missing_value_job import build_fill_holes_job, build_fill_holes_sensor
from orchestration.backfill.sensor import build_backfill_queued_tables
from orchestration.capture.checks import build_staging_checks
from orchestration.capture.replicate import build_replicate_job
from orchestration.capture.sensor import build_keep_replicating
from orchestration.maintenance import asset as maintenance
from orchestration.maintenance.asset import build_maintain_schedule, build_maintenance_asset
from orchestration.merge import tables
from orchestration.merge.sensor import build_merge_staged_changes
from orchestration.merge.tables import build_staging_asset, build_table_assets
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import find_tables
from orchestration.runs.pipeline_runs import tag_runs
from orchestration.runs.resources import make_spark_resource
from orchestration.verification import verified_through


def build_definitions(settings: Settings) -> dg.Definitions:
    """The definitions of a pipeline. They load even if the source is down or the lake is empty."""
    known = find_tables(settings)
    merged = build_table_assets(settings, known)
    merge = dg.define_asset_job(
        tables.JOB_NAME,
        selection=dg.AssetSelection.assets(*merged.keys),
        description="Merges all staged changes, waits for more, and ends.",
        executor_def=dg.in_process_executor,
        tags=tag_runs(settings),
    )
    backfill = dg.define_asset_job(
        sensor.JOB_NAME,
        selection=dg.AssetSelection.assets(AssetKeys.of(settings).backfill),
        description="Reads whole tables into the log while the stream goes on.",
        executor_def=dg.in_process_executor,
        tags=tag_runs(settings),
    )
    maintain = dg.define_asset_job(
        maintenance.JOB_NAME,
        selection=dg.AssetSelection.assets(AssetKeys.of(settings).maintenance),
        description="Drops old cuts and removes the files that nobody reads any more.",
        executor_def=dg.in_process_executor,
        tags=tag_runs(settings),
    )
    verification = verified_through.build_verification(settings, known)
    verifying = [] if verification is None else [verification]
    verify = [
        dg.define_asset_job(
            verified_through.JOB_NAME,
            selection=dg.AssetSelection.checks(checks),
            description="Compares the tables with the source at one LSN, large tables in rotation.",
            executor_def=dg.in_process_executor,
            tags=tag_runs(settings),
        )
        for checks in verifying
    ]
    return dg.Definitions(
        assets=[
            build_staging_asset(settings),
            merged,
            build_backfill_asset(settings),
            build_maintenance_asset(settings),
        ],
        jobs=[
            build_replicate_job(settings),
            merge,
            backfill,
            build_fill_holes_job(settings),
            maintain,
            *verify,
        ],
        asset_checks=[build_staging_checks(settings), *verifying],
        schedules=[
            build_maintain_schedule(settings),
            *([verified_through.build_verify_schedule(settings, known)] if verifying else []),
        ],
        sensors=[
            build_keep_replicating(settings),
            build_merge_staged_changes(settings),
            build_backfill_queued_tables(settings),
            build_fill_holes_sensor(settings),
        ],
        resources={"spark": make_spark_resource(settings)},
        # With a process for each step, each step would start a JVM.
        executor=dg.in_process_executor,
    )
