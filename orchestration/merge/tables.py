"""Assets of the merge: every table, and the cut at which all of them can be read together.

One op merges all tables in one session, so that a round covers all of them. It goes on while
changes arrive, waits `linger_seconds` for more, and ends. It also merges and reports a table that
the code location does not know yet.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from fnmatch import fnmatchcase

import dagster as dg
from dagster_pyspark import LazyPySparkResource

from cdc_core.coordination.wakeups import Wakeups
from cdc_core.settings import Settings
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableMode, TableName
from orchestration.merge.table_reports import TableReports, describe_columns
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.pipeline_runs import name_pool
from spark_jobs.lake.damaged_tables import open_if_readable
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import follow

JOB_NAME = "merge"
OP_NAME = "merge_tables"
POOL = "merge"


def build_staging_asset(settings: Settings) -> dg.AssetSpec:
    """The asset of the log. Job `replicate` writes it, so it cannot be materialized by itself."""
    key = AssetKeys.of(settings).staging
    return dg.AssetSpec(
        key,
        description=(
            "The ordered log of every change, whole transactions in commit order. Written by job"
            " replicate, which sensor keep_replicating keeps alive."
        ),
        group_name="staging",
        kinds={"postgres", "deltalake"},
        metadata={"dagster/uri": Lake.of(settings).changes.uri},
        freshness_policy=_choose_freshness(settings, key),
    )


def build_table_assets(settings: Settings, tables: Sequence[TableName]) -> dg.AssetsDefinition:
    """The targets of tables and the cut, materialized together or any of them alone."""
    lake, asset_keys = Lake.of(settings), AssetKeys.of(settings)
    targets = [target for table in tables for target in lake.choose_targets(table)]
    keys = {asset_keys.find_target(target): target for target in targets}

    @dg.multi_asset(
        name=OP_NAME,
        description="Merges the staged changes into the tables, in rounds, each up to one cut.",
        specs=[
            *(_describe_target(settings, lake, target) for target in targets),
            _describe_cuts(asset_keys, [*keys]),
        ],
        can_subset=True,
        pool=name_pool(settings, POOL),
        config_schema={
            "linger_seconds": dg.Field(
                float,
                default_value=0.0,
                description=(
                    "Seconds to wait for more changes after everything is merged. 0 merges what is"
                    " staged, then ends."
                ),
            ),
            "run_minutes": dg.Field(
                float,
                default_value=settings.merge.run_minutes,
                description="The run ends after so many minutes, even if changes still arrive.",
            ),
            "round_rows": dg.Field(
                int,
                default_value=settings.merge.round_rows,
                description="The most changes that one round takes from a backlog.",
            ),
        },
    )
    def merge_tables(
        context: dg.AssetExecutionContext, spark: LazyPySparkResource
    ) -> Iterator[dg.MaterializeResult[None]]:
        config = context.op_execution_context.op_config
        _require_positive(config, "run_minutes", "round_rows")
        selected = context.selected_asset_keys
        chosen = {str(keys[key]) for key in selected if key in keys}
        reports = TableReports(context.log_event, lake, asset_keys)
        most_s = config["run_minutes"] * 60

        def merge(stop: threading.Event) -> None:
            deadline = time.monotonic() + most_s
            session = spark.spark_session
            with closing(Wakeups(settings.redis, slot=settings.source.slot)) as wakeups:

                def wait(seconds: float) -> None:
                    reports.tell_all()
                    wakeups.wait(seconds)

                follow(
                    session,
                    lake,
                    round_rows=config["round_rows"],
                    linger_seconds=config["linger_seconds"],
                    stop=stop,
                    deadline=deadline,
                    # None: all tables, also those that came after this location was loaded.
                    tables=None if len(chosen) in {0, len(keys)} else chosen,
                    on_round=reports.add,
                    wait=wait,
                )
            reports.tell_all()

        host_loop(context.op_execution_context, merge, most_s=most_s)
        # A person may have asked for a table without a change: report its state. The cut comes
        # after the tables that it depends on, as Dagster requires.
        for key in [key for key in (*keys, asset_keys.cuts) if key in selected - reports.told]:
            metadata = reports.describe_unchanged(keys.get(key))
            if metadata is not None:
                yield dg.MaterializeResult(asset_key=key, metadata=metadata)

    return merge_tables


def _describe_target(settings: Settings, lake: Lake, target: Target) -> dg.AssetSpec:
    # Capture runs from this code location, too, so no table may keep it from loading.
    folder = lake.locate_target(target)
    delta = open_if_readable(folder)
    metadata: dict[str, object] = {
        "dagster/table_name": str(target),
        "dagster/uri": folder.uri,
    }
    if delta is not None:
        metadata["dagster/column_schema"] = describe_columns(delta)
    key = AssetKeys.of(settings).find_target(target)
    return dg.AssetSpec(
        key,
        deps=[AssetKeys.of(settings).staging],
        description=_describe_content(lake, target),
        group_name=target.kind.value,
        kinds={"postgres", "deltalake", "pyspark"},
        metadata=metadata,
        skippable=True,
        freshness_policy=_choose_freshness(settings, key),
    )


def _describe_content(lake: Lake, target: Target) -> str:
    """What a target has, for its page."""
    if target.kind is TargetKind.APPEND:
        return f"Each entry of the log about {target.table}, with its position."
    if target.kind is TargetKind.HISTORY:
        return f"Each version that a row of {target.table} had, from one LSN to another."
    if TableMode.SOFT_DELETE in lake.choose_modes(target.table):
        return f"Rows of {target.table} as of the newest cut, and those that the source deleted."
    return f"Current rows of {target.table}, as of the newest cut."


def _describe_cuts(keys: AssetKeys, tables: Sequence[dg.AssetKey]) -> dg.AssetSpec:
    return dg.AssetSpec(
        keys.cuts,
        deps=tables or [keys.staging],
        description=(
            "The LSNs at which every table can be read together: `walgate sql` reads at the"
            " newest one."
        ),
        group_name="ledger",
        kinds={"deltalake", "pyspark"},
        skippable=True,
    )


def _choose_freshness(settings: Settings, key: dg.AssetKey) -> dg.FreshnessPolicy | None:
    """The policy of the longest pattern that matches an asset; None without one."""
    name = AssetKeys.of(settings).shorten(key)
    named = [p for p in settings.dagster.freshness if fnmatchcase(name, p)]
    if not named:
        return None
    seconds = settings.dagster.freshness[max(named, key=len)]
    return dg.FreshnessPolicy.time_window(fail_window=timedelta(seconds=seconds))


def _require_positive(config: dict[str, float], *names: str) -> None:
    wrong = [
        f"{name} is {config[name]}, expected more than 0" for name in names if config[name] <= 0
    ]
    if config["linger_seconds"] < 0:
        wrong.append(f"linger_seconds is {config['linger_seconds']}, expected 0 or more")
    if wrong:
        raise dg.Failure("\n".join(wrong), allow_retries=False)
