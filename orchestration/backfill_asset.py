"""Asset `backfill`: whole tables on demand, one partition for each."""

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import dagster as dg

from cdc_core.backfill.results import Progress
from cdc_core.settings import Settings
from cdc_core.source.chunks import estimate_size
from cdc_core.source.connection import open_connection
from cdc_core.vocabulary import TableName
from orchestration.backfill import run_backfills
from orchestration.hosting import host_loop
from orchestration.known_tables import find_partition, partition_tables

BACKFILL_KEY = dg.AssetKey(["backfill"])
_OBSERVE_S = 15.0


def build_backfill_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset whose partitions are tables; a bare click only says what would be done."""

    @dg.asset(
        key=BACKFILL_KEY,
        description=(
            "Reads whole tables into the log while the stream goes on, exactly, and removes what"
            " the source has no more. Interrupted or cancelled, the next run goes on where it was."
            " Materialize the table, or wait for sensor merge_staged_changes, to see the rows."
        ),
        group_name="backfill",
        # A dry run observes the table and does not fill its partition.
        output_required=False,
        kinds={"postgres", "deltalake"},
        partitions_def=partition_tables(settings),
        config_schema={
            "dry_run": dg.Field(
                bool,
                default_value=True,
                description="Only say how many rows, bytes and chunks there are. Off reads them.",
            ),
            "chunk_rows": dg.Field(
                int,
                default_value=settings.backfill.chunk_rows,
                description="How many rows are read at once, under one short lock.",
            ),
            "parallel": dg.Field(
                int,
                default_value=settings.backfill.parallel,
                description="How many connections read at a time.",
            ),
        },
    )
    def backfill(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        config = context.op_execution_context.op_config
        for name in ("chunk_rows", "parallel"):
            if config[name] < 1:
                raise dg.Failure(
                    f"{name} is {config[name]}, expected 1 or more", allow_retries=False
                )
        table = find_partition(settings, context.partition_key)
        observe = partial(dg.AssetObservation, BACKFILL_KEY, partition=context.partition_key)
        if config["dry_run"]:
            metadata = _estimate(settings, table, config["chunk_rows"])
            context.log_event(observe(metadata=metadata))
            return
        observed_at = began = time.monotonic()

        def tell(_: TableName, progress: Progress) -> None:
            nonlocal observed_at
            now = time.monotonic()
            if now - observed_at >= _OBSERVE_S:
                observed_at = now
                context.log_event(observe(metadata=_describe(progress, now - began)))

        done: dict[TableName, Progress] = {}

        def work(stop: threading.Event) -> None:
            done.update(
                run_backfills(
                    settings,
                    [table],
                    chunk_rows=config["chunk_rows"],
                    parallel=config["parallel"],
                    stop=stop,
                    on_progress=tell,
                )
            )

        host_loop(context.op_execution_context, work, most_s=None)
        metadata = {"table": str(table)} | _describe(done[table], time.monotonic() - began)
        yield dg.MaterializeResult(metadata=metadata)

    return backfill


def _estimate(settings: Settings, table: TableName, chunk_rows: int) -> dict[str, Any]:
    with closing(open_connection(settings.source, application_name="walgate look")) as connection:
        rows, size = estimate_size(connection, table)
    return {
        "table": str(table),
        "dry_run": True,
        "what_to_do": "launch it with dry_run: false to read the table",
        "rows_estimated": rows,
        "bytes_estimated": size,
        "chunks_estimated": -(-rows // chunk_rows),
    }


def _describe(progress: Progress, seconds: float) -> dict[str, Any]:
    return {
        "rows": progress.rows,
        "chunks": progress.chunks,
        "stale_dropped": progress.stale,
        "seconds": round(seconds, 1),
        "rows_per_second": round(progress.rows / max(seconds, 0.001), 1),
    }
