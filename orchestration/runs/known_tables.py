"""Finds the tables of a pipeline, by name and as Dagster's partitions."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing

import dagster as dg

from cdc_core.errors import SourceError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_quick_query
from cdc_core.source.identity import list_published_tables
from cdc_core.vocabulary import TableName
from orchestration.runs.keys import list_parts
from spark_jobs.lake.lake import Lake


def find_tables(settings: Settings) -> list[TableName]:
    """Every table that the log announced or the publication holds, in order of name."""
    lake = Lake.of(settings)
    announced = {relation.table for relation in lake.read_relations().values()}
    return sorted(announced | _list_published(settings))


def partition_tables(settings: Settings) -> dg.DynamicPartitionsDefinition:
    """A partition for each table; dynamic, because tables are added while the code stays loaded."""
    return dg.DynamicPartitionsDefinition(
        name=f"{settings.dagster.pipeline}_tables_{settings.source.slot}"
    )


def partition_key(table: TableName) -> str:
    """The partition key of a table, `<schema>/<name>` as its asset key spells it."""
    return "/".join(list_parts(table))


def find_partitions(settings: Settings, keys: Iterable[str]) -> dict[TableName, str]:
    """The tables of partition keys. Raises: Failure if a key has no table."""
    known = {partition_key(table): table for table in find_tables(settings)}
    wanted = [*keys]
    if gone := [key for key in wanted if key not in known]:
        raise dg.Failure(
            f"{', '.join(gone)}: expected a table of the publication or the log, found none",
            allow_retries=False,
        )
    return {known[key]: key for key in wanted}


def add_partitions(
    instance: dg.DagsterInstance, settings: Settings, tables: Iterable[TableName]
) -> None:
    """Add the partitions of tables that have none."""
    name = partition_tables(settings).name
    assert name is not None
    missing = {partition_key(table) for table in tables} - {*instance.get_dynamic_partitions(name)}
    if missing:
        instance.add_dynamic_partitions(name, sorted(missing))


def _list_published(settings: Settings) -> set[TableName]:
    source = settings.source
    try:
        with closing(open_for_quick_query(source, application_name="walgate page")) as connection:
            return set(list_published_tables(connection, source.publication))
    except SourceError:
        # If the source is down, the page still loads, with the tables of the log.
        return set()
