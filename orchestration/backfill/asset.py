"""Asset `backfill`: reads whole tables or parts on demand, one partition for each table."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dagster as dg

from cdc_core.backfill.estimates import estimate
from cdc_core.errors import WalgateError
from cdc_core.settings import Settings
from cdc_core.spooled import Scope
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import make_request, run_backfills
from orchestration.backfill.events import BackfillReports, observe
from orchestration.backfill.orders import Order, give_order
from orchestration.runs.failures import explain_failure
from orchestration.runs.hosting import host_loop
from orchestration.runs.keys import AssetKeys
from orchestration.runs.known_tables import find_partitions, partition_tables

_READ = "read"


def build_backfill_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset whose partitions are tables. Launched with its defaults, it only estimates."""
    own = AssetKeys.of(settings).backfill

    @dg.asset(
        key=own,
        description=(
            "Reads whole tables, or a part of one table, into the log while the stream goes on."
            " Removes the rows that the source deleted. If a run is interrupted or cancelled, the"
            " next run resumes where it stopped. To keep a backfill waiting, launch with action:"
            " pause, and later with action: resume. To see the rows, materialize the table, or wait"
            " for sensor merge_staged_changes."
        ),
        group_name="backfill",
        # A dry run logs an observation of the table and does not fill its partition.
        output_required=False,
        kinds={"postgres", "deltalake"},
        partitions_def=partition_tables(settings),
        config_schema=_describe_fields(settings),
    )
    def backfill(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[None]]:
        # The run itself logs the materialization of each partition that was read whole.
        yield from ()
        config = context.op_execution_context.op_config
        chosen = find_partitions(settings, _list_partitions(context, config["tables"]))
        scope = _read_scope(config, chosen)
        if config["action"] != _READ:
            for given in give_order(settings.lake, Order(config["action"]), list(chosen)):
                told = {"table": str(given.table), "state": str(given.state), "note": given.note}
                context.log_event(observe(own, chosen[given.table], told))
            return
        if config["dry_run"]:
            for table, key in chosen.items():
                context.log_event(observe(own, key, _estimate(settings, table, config, scope)))
            return
        _run(context, settings, chosen, scope)

    return backfill


def _list_partitions(context: dg.AssetExecutionContext, named: Sequence[str]) -> list[str]:
    """The run's partitions and those that `named` adds. Raises: Failure if there are none."""
    is_partitioned = context.has_partition_key or context.has_partition_key_range
    listed = [*(context.partition_keys if is_partitioned else ()), *named]
    if not listed:
        raise dg.Failure(
            "no table is chosen: expected a partition, or names in `tables`", allow_retries=False
        )
    return list(dict.fromkeys(listed))


def _describe_fields(settings: Settings) -> dict[str, dg.Field]:
    return {
        "dry_run": dg.Field(
            bool,
            default_value=True,
            description="Only estimate rows, bytes, chunks and minutes. Off reads the tables.",
        ),
        "tables": dg.Field(
            [str],
            default_value=[],
            description=(
                "Tables to read with the chosen partition, named as partitions: public/orders. One"
                " run for many small tables is much faster than one run for each."
            ),
        ),
        "action": dg.Field(
            dg.Enum("BackfillAction", [dg.EnumValue(str(one)) for one in (_READ, *Order)]),
            default_value=_READ,
            description=(
                "What to do: read the tables; or pause, resume or cancel the backfills of them that"
                " another run or process has begun. A paused run waits."
            ),
        ),
        "from_key": dg.Field(
            [str],
            default_value=[],
            description=(
                "First key to read: a text for each column of the key, or only for its first"
                " columns. Empty begins at the first row."
            ),
        ),
        "to_key": dg.Field(
            [str],
            default_value=[],
            description="Last key to read, in the same form. Empty reads to the last row.",
        ),
        "where": dg.Field(
            str,
            default_value="",
            description=(
                "Read only the rows that meet this SQL condition. The run then does not remove rows"
                " that the source deleted."
            ),
        ),
        "anew": dg.Field(
            bool,
            default_value=False,
            description="Begin an unfinished backfill of the same rows again. Off resumes it.",
        ),
        "chunk_rows": dg.Field(
            int,
            default_value=settings.backfill.chunk_rows,
            description=(
                "The most rows of a chunk, which is read under one short lock. A chunk has fewer"
                " rows if it would take seconds."
            ),
        ),
        "parallel": dg.Field(
            int,
            default_value=settings.backfill.parallel,
            description="How many connections read at the same time, over all tables.",
        ),
    }


def _read_scope(config: Mapping[str, Any], chosen: Mapping[TableName, str]) -> Scope:
    """The part that the config asks for. Raises: Failure with everything wrong in its fields."""
    problems = [
        f"{name} is {config[name]}, expected 1 or more"
        for name in ("chunk_rows", "parallel")
        if config[name] < 1
    ]
    low, high = (tuple(config[name]) or None for name in ("from_key", "to_key"))
    scope = Scope(low, high, config["where"] or None)
    if len(chosen) > 1 and not scope.is_whole:
        problems.append(f"from_key, to_key and where need one table, {len(chosen)} are chosen")
    if problems:
        raise dg.Failure("; ".join(problems), allow_retries=False)
    return scope


def _run(
    context: dg.AssetExecutionContext,
    settings: Settings,
    chosen: Mapping[TableName, str],
    scope: Scope,
) -> None:
    """Read tables. A table that was read whole fills its partition."""
    config = context.op_execution_context.op_config
    reports = BackfillReports(
        context.log_event, chosen, key=AssetKeys.of(settings).backfill, is_whole=scope.is_whole
    )

    def work(stop: threading.Event) -> None:
        run_backfills(
            settings,
            list(chosen),
            chunk_rows=config["chunk_rows"],
            parallel=config["parallel"],
            stop=stop,
            on_progress=reports.tell,
            scope=scope,
            is_anew=config["anew"],
        )

    host_loop(context.op_execution_context, work, most_s=None)


def _estimate(
    settings: Settings, table: TableName, config: Mapping[str, Any], scope: Scope
) -> dict[str, Any]:
    wanted = make_request(settings, table, chunk_rows=config["chunk_rows"], scope=scope)
    rate = settings.backfill.rows_per_second
    try:
        found = estimate(wanted, parallel=config["parallel"], rows_per_second=rate)
    except WalgateError as error:
        raise dg.Failure("\n".join(explain_failure(error).lines), allow_retries=False) from None
    return {
        "table": str(table),
        "dry_run": True,
        "what_to_do": "launch it with dry_run: false to read the table",
        "rows_estimated": found.rows,
        "bytes_estimated": found.size,
        "chunks_estimated": found.chunks,
        "minutes_estimated": round(found.seconds / 60, 2),
        "not_removed": found.unswept,
        "first_reading": found.costly,
    }
