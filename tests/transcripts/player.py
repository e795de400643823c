"""Plays the SQL of all transcripts on one server, and writes down what became of it.

All transcripts share a database, a stream and a lake, because a merge of many tables costs less
than many merges. Each has its tables in a schema of its own. After each step of all transcripts,
one capture stages what they did, and one merge brings it to the tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.vocabulary import Lsn, Relation, TableName, encode_name, quote_identifier
from spark_jobs.lake.lake import Lake, open_table
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge.rounds import merge_until
from spark_jobs.target.limits import MergeLimits
from spark_jobs.target.result import TableMergeResult, WritePlan
from tests.fix_pipeline import Pipeline
from tests.fix_spark import make_quick
from tests.lakes import path_of
from tests.postgres_server import Database
from tests.transcripts.names import Names
from tests.transcripts.showing import TableState, show_entries, show_table
from tests.transcripts.transcript import LOG, Section, Transcript, assemble, split_statements

# The key of the hashes, so that they are the same in each run.
HASH_KEY = "f" * 64
_ALL = 1_000_000


@dataclass(frozen=True, slots=True)
class Merging:
    """What merges the log, and by which limits."""

    spark: SparkSession
    limits: MergeLimits


@dataclass(slots=True)
class Played:
    """The text of each transcript, by name, and the ways in which each merge wrote tables."""

    limits: MergeLimits | None
    texts: dict[str, str] = field(default_factory=dict)
    ways: list[dict[str, WritePlan]] = field(default_factory=list)


@dataclass(slots=True)
class _Steps:
    """What the steps of one transcript led to: the entries and the tables of each."""

    entries: list[list[dict[str, Any]]] = field(default_factory=list)
    tables: list[list[TableState]] = field(default_factory=list)

    def show(self, relations: Mapping[int, Relation]) -> list[list[Section]]:
        """The sections below the SQL of each step."""
        rows = [row for entries in self.entries for row in entries]
        names = Names.of(rows, (relations[row["relation_version"]].oid for row in rows))
        logs = show_entries(self.entries, relations, names)
        return [
            [Section(LOG, "\n".join(log)), *(show_table(table, names) for table in tables)]
            for log, tables in zip(logs, self.tables, strict=True)
        ]


def play(
    transcripts: Sequence[Transcript], database: Database, folder: Path, merging: Merging | None
) -> Played:
    """Play transcripts in an empty database and an empty folder.

    If nothing is to merge the log, the texts have no tables.
    """
    for transcript in transcripts:
        database.execute(f"create schema {transcript.name}")
        _run(database, transcript, transcript.before)
    pipeline = Pipeline(database, folder)
    with (folder / "walgate.toml").open("a") as configuration:
        configuration.writelines(f"{one.settings}\n" for one in transcripts)
    settings = pipeline.load_settings(WALGATE_HASH_KEY=HASH_KEY)
    lake = Lake.of(settings)
    session = None if merging is None else make_quick(merging.spark)
    played = Played(None if merging is None else merging.limits)
    results = {one.name: _Steps() for one in transcripts}
    staged = 0
    for number in range(max(len(one.steps) for one in transcripts)):
        waiting = [one for one in transcripts if number < len(one.steps)]
        for transcript in waiting:
            _run(database, transcript, transcript.steps[number])
        run_capture(settings, RunLimit(threading.Event(), until_current=True))
        merged: dict[str, TableMergeResult] = {}
        if merging is not None and session is not None:
            (done,) = merge_until(session, lake, round_rows=_ALL, limits=merging.limits)
            merged = done.tables
            played.ways.append({table: one.way for table, one in merged.items()})
        log = _read_log(lake)
        for transcript in waiting:
            own = [row for row in log[staged:] if _find_schema(row) == transcript.name]
            tables = [] if merging is None else _read_tables(lake, own, merged)
            results[transcript.name].entries.append(own)
            results[transcript.name].tables.append(tables)
        staged = len(log)
    relations = lake.read_relations()
    for transcript in transcripts:
        shown = results[transcript.name].show(relations)
        played.texts[transcript.name] = assemble(transcript, shown)
    return played


def _run(database: Database, transcript: Transcript, text: str) -> None:
    """Run SQL in the transcript's schema, in one session."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        name = sql.Identifier(transcript.name)
        connection.execute(sql.SQL("set search_path to {}").format(name))
        for statement in split_statements(text):
            connection.execute(statement.encode())


def _read_log(lake: Lake) -> list[dict[str, Any]]:
    """All entries of tables, in the order of their positions."""
    log = open_table(lake.changes)
    assert log is not None
    order = [(column, "ascending") for column in ("epoch", "commit_lsn", "seq")]
    rows: list[dict[str, Any]] = log.to_pyarrow_table().sort_by(order).to_pylist()
    return [row for row in rows if row["table"] is not None]


def _find_schema(entry: dict[str, Any]) -> str:
    return TableName.parse(entry["table"]).schema


def _read_tables(
    lake: Lake, entries: Iterable[dict[str, Any]], merged: Mapping[str, TableMergeResult]
) -> list[TableState]:
    """Each table that log entries are of, as the merge left it."""
    states, relations = read_states(lake), lake.read_relations()
    newest = {entry["table"]: relations[entry["relation_version"]] for entry in entries}
    tables = []
    for name, relation in sorted(newest.items()):
        folder, state = lake.locate(relation.table), states[name]
        halt = None if state.reason is None else (state.reason, Lsn(state.since_lsn or 0))
        found = TableState(
            quote_identifier(relation.table.name),
            path_of(folder).relative_to(path_of(lake.root)),
            merged.get(name),
            halt,
        )
        delta = open_table(folder)
        if delta is not None:
            key = [encode_name(relation.columns[i].name) for i in relation.key]
            found.rows = delta.to_pyarrow_table().sort_by([(one, "ascending") for one in key])
            found.version = delta.version()
            assert found.merged is None or found.merged.rows == len(found.rows)
            found.types = {one.name: _name_type(one.type) for one in delta.schema().fields}
        tables.append(found)
    return tables


def _name_type(delta_type: Any) -> str:
    return str(getattr(delta_type, "type", delta_type))
