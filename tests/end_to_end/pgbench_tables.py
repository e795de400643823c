"""The tables of pgbench: load on them, and their rows on both sides."""

from __future__ import annotations

import io
import subprocess
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.csv
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.query.read_bound import find_bound_at
from spark_jobs.query.sql import answer_query
from tests.postgres_server import Database

KEYS = {"pgbench_accounts": "aid", "pgbench_branches": "bid", "pgbench_tellers": "tid"}


def start_load(database: Database, seconds: int) -> subprocess.Popen[bytes]:
    """Run eight clients for so many seconds."""
    command: list[str | Path] = [
        database.server.bin("pgbench"),
        "-n",
        "-c",
        "8",
        "-T",
        str(seconds),
        database.dsn,
    ]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def run_pgbench(database: Database, *arguments: str) -> None:
    """Run pgbench to its end."""
    command: list[str | Path] = [database.server.bin("pgbench"), *arguments, database.dsn]
    subprocess.run(command, check=True, capture_output=True)


def read_source(database: Database, table: str, key: str) -> pa.Table:
    """Give the rows of the source in key order."""
    with psycopg.connect(database.dsn) as connection, connection.cursor() as cursor:
        text = io.BytesIO()
        statement = f"copy (select * from {table} order by {key}) to stdout (format csv, header)"
        with cursor.copy(statement.encode()) as copy:
            for piece in copy:
                text.write(piece)
    text.seek(0)
    options = pyarrow.csv.ConvertOptions(
        column_types={"filler": pa.string()},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    found = pyarrow.csv.read_csv(text, convert_options=options)
    whole = [pa.field(f.name, f.type if f.name == "filler" else pa.int32()) for f in found.schema]
    return found.cast(pa.schema(whole)).combine_chunks()


def read_lake(session: SparkSession, lake: Lake, table: str, key: str) -> pa.Table:
    """Give the rows of the lake at the newest cut in key order."""
    bound = find_bound_at(lake, "latest")
    rows = answer_query(session, lake, f"select * from {table} order by {key}", bound).rows
    found = rows.toArrow()
    own = [name for name in found.schema.names if not name.startswith("_")]
    chosen = found.select(own)
    fields = [pa.field(field.name, field.type) for field in chosen.schema]
    return chosen.cast(pa.schema(fields)).combine_chunks()
