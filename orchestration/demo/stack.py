"""Starts and ends the demo's stack: servers, shop, writers and Dagster, in a fresh folder."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import sql

from cdc_core.errors import ConfigurationError
from cdc_core.settings import CONFIG_NAME, Settings, load_settings
from cdc_core.source.connection import open_connection
from cdc_core.source.creation import create_replication, list_keyed_tables
from cdc_core.vocabulary import TableName
from orchestration.demo.object_store import ROOT, enter_store_environment, list_options
from orchestration.demo.servers import Servers, choose_port, remove_left_servers, running_servers
from orchestration.demo.shop import fill_shelves, import_archive, make_tables
from orchestration.demo.show import Show
from orchestration.demo.writers import Writers, pay_order, place_order
from orchestration.runs.log_lines import LogLines
from orchestration.stack.dagster_stack import DagsterStack, run_dagster
from orchestration.stack.processes import STACK_VARIABLE, end_processes, hold_stack
from spark_jobs.lake.lake import Lake

DEFAULT_PORT = 3000
# Marks the folder as the demo's: the next demo deletes everything in it.
_MARKER = ".walgate-demo"
_LOCK = "up.lock"
_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Where a demo runs, how many rows its shop has before replication, and how busy it is.

    `wants_store`: its lake is in an object store, and not in the folder.
    """

    folder: Path
    rows: int
    writers: int
    per_second: float
    seed: int
    wants_store: bool = False


@dataclass(frozen=True, slots=True)
class Stack:
    """Everything that runs, and its settings."""

    settings: Settings
    config: Path
    servers: Servers
    writers: Writers
    dagster: DagsterStack

    @property
    def lake(self) -> Lake:
        """The lake that the stack fills."""
        return Lake.of(self.settings)


@contextmanager
def running_stack(
    plan: DemoOptions, show: Show, *, stop: threading.Event, hurry: threading.Event
) -> Iterator[Stack]:
    """Run the stack until the block ends; first end and delete what an earlier demo left.

    If `stop` is set while Dagster starts, the block begins at once. `hurry` cuts the end short.
    Raises: StackInUse if another demo runs here; ConfigurationError; WalgateError.
    """
    folder = plan.folder.resolve()
    _require_own(folder)
    with hold_stack(folder):
        _clear(folder)
        _divert_log(folder / "demo.log")
        try:
            show.step("PostgreSQL and Redis")
            with running_servers(folder, wants_store=plan.wants_store) as servers:
                show.say(_describe_servers(servers))
                with _selling(plan, show, servers, folder) as (config, settings, writers):
                    show.step("Dagster")
                    show.say("Dagster runs capture and merges; this command runs neither itself")
                    with run_dagster(settings, config=config, stop=stop, hurry=hurry) as dagster:
                        try:
                            yield Stack(settings, config, servers, writers, dagster)
                        finally:
                            writers.stop()
                            show.say("Dagster's runs drain, then everything ends")
        finally:
            end_processes(folder, grace_s=0 if hurry.is_set() else _GRACE_S)


def enter_environment(folder: Path) -> None:
    """Remove what the environment has for other pipelines and servers; mark what we start."""
    for name in [name for name in os.environ if name.startswith(("PG", "WALGATE_"))]:
        del os.environ[name]
    enter_store_environment()
    # PySpark starts the JVM of this process with our environment, so the JVM has the mark too.
    os.environ[STACK_VARIABLE] = str(folder.resolve())


def format_configuration(servers: Servers, port: int) -> str:
    """The demo's walgate.toml: what differs from the defaults."""
    redis = (
        [] if servers.redis_url is None else ["[redis]", f"url = {json.dumps(servers.redis_url)}"]
    )
    return "\n".join(
        [
            "# Written by `walgate demo`; the next demo overwrites it.",
            "[source]",
            f"dsn = {json.dumps(servers.dsn)}",
            "[lake]",
            *_format_lake(servers.store),
            *redis,
            "[spark]",
            'driver_memory = "2g"',
            "[spark.conf] # For a few minutes on two cores: the quick compiler, few partitions.",
            '"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"',
            '"spark.sql.shuffle.partitions" = 2',
            "[dagster]",
            f"port = {port}",
            "",
        ]
    )


def _format_lake(store: str | None) -> list[str]:
    if store is None:
        return ['root = "lake"']
    options = [f"{name} = {json.dumps(value)}" for name, value in list_options(store).items()]
    return [f"root = {json.dumps(ROOT)}", f"storage_options = {{ {', '.join(options)} }}"]


@contextmanager
def _selling(
    plan: DemoOptions, show: Show, servers: Servers, folder: Path
) -> Iterator[tuple[Path, Settings, Writers]]:
    """Make a shop that has rows already, and let its writers work until the block ends."""
    show.step("The shop opens")
    port = choose_port(DEFAULT_PORT)
    if port != DEFAULT_PORT:
        show.say(f"port {DEFAULT_PORT} is in use: Dagster's page gets port {port}")
    config = folder / CONFIG_NAME
    config.write_text(format_configuration(servers, port), encoding="utf-8")
    settings = load_settings(config, {})
    with closing(open_connection(settings.source, application_name="walgate demo")) as connection:
        make_tables(connection)
        _fill(connection, plan)
        tables = list_keyed_tables(connection)
        rows = count_rows(connection, tables)
        show.say(f"{len(tables)} tables with {rows:,} rows, inserted before the slot")
        made = create_replication(connection, settings.source, tables).made
    show.say(f"{' and '.join(made)} made, as `walgate init` does")
    writers = Writers(servers.dsn, writers=plan.writers, per_second=plan.per_second, seed=plan.seed)
    writers.start()
    show.say(
        f"{plan.writers} writers sell at {plan.per_second:g} transactions a second"
        f" (seed {plan.seed})"
    )
    try:
        yield config, settings, writers
    finally:
        writers.stop()


def _fill(connection: psycopg.Connection, plan: DemoOptions) -> None:
    """Insert the rows that the shop has before replication."""
    chance = random.Random(plan.seed)
    with connection.transaction():
        fill_shelves(connection)
        place_order(connection, chance)
        pay_order(connection, chance)
    import_archive(connection, rows=plan.rows)


def count_rows(connection: psycopg.Connection, tables: Iterable[TableName]) -> int:
    """The number of rows of some tables together."""
    counts = sql.SQL(" + ").join(
        sql.SQL("(select count(*) from {})").format(sql.Identifier(table.schema, table.name))
        for table in tables
    )
    (found,) = connection.execute(sql.SQL("select {}").format(counts)).fetchone() or (0,)
    return int(found)


def _require_own(folder: Path) -> None:
    """Refuse a folder that is not empty and not a demo's. Raises: ConfigurationError."""
    if folder.exists() and not (folder / _MARKER).exists() and any(folder.iterdir()):
        raise ConfigurationError(
            [f"{folder} is not empty, and no demo made it: the demo deletes nothing in it"],
            fix="name another folder with --folder",
        )


def _clear(folder: Path) -> None:
    """Mark the folder, and delete what an earlier demo left; its processes must have ended."""
    (folder / _MARKER).write_text("Everything here is deleted by the next `walgate demo`.\n")
    remove_left_servers(folder)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name not in {_MARKER, _LOCK}:
            path.unlink()


def _divert_log(file: Path) -> None:
    """Send log lines to a file, to keep them out of what the demo prints."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.formatter, LogLines):
            handler.setStream(file.open("a", encoding="utf-8"))


def _describe_servers(servers: Servers) -> str:
    redis = "Redis" if servers.redis_url else "no Redis, which the demo does not need"
    store = "" if servers.store is None else f"; an object store at {servers.store}"
    return f"PostgreSQL {servers.version} and {redis}, on unix sockets only{store}"
