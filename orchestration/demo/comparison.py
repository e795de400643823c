"""Compares each table of the source with its rows in the lake, by EXCEPT ALL both ways, as text.

It loads the lake's rows into a temporary table of the source's server, which is not replicated.
That table has a text column for each compared column, written as a verification writes it on both
sides; but here PostgreSQL compares the texts themselves. One more column has the names of a row's
missing values. It is NULL for every row of the source.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession, functions

from cdc_core.source.checksums import write_text
from cdc_core.source.connection import OUTPUT_SETTINGS
from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.query.as_of import table_at
from spark_jobs.verification.checksums import choose_compared, find_schema, write_texts

_COLUMNS = """
select attname from pg_attribute
where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
"""
_TABLES = """
select schemaname, tablename from pg_publication_tables where pubname = %s order by 1, 2
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows of a table on each side, and those that have no equal on the other side."""

    table: TableName
    source_rows: int
    lake_rows: int
    only_in_source: int
    only_in_lake: int
    halt: str | None

    @property
    def is_equal(self) -> bool:
        """Whether both sides hold the same rows, and the table follows the log."""
        return not (self.only_in_source or self.only_in_lake or self.halt)


def list_published(connection: psycopg.Connection, publication: str) -> list[TableName]:
    """The tables of a publication, in order of name."""
    return [TableName(*row) for row in connection.execute(_TABLES, [publication])]


def compare_table(
    connection: psycopg.Connection,
    session: SparkSession,
    lake: Lake,
    table: TableName,
    at: Bound,
) -> Comparison:
    """Compare a table as it is in the source with its rows in the lake at a bound.

    No other session may write to the source during the comparison. Raises: LakeError.
    """
    reading = table_at(session, lake, table, at)
    with connection.transaction():
        for name, value in OUTPUT_SETTINGS.items():
            connection.execute("select set_config(%s, %s, true)", [name, value])
        source = sql.Identifier(table.schema, table.name)
        names = [name for (name,) in connection.execute(_COLUMNS, [source.as_string(connection)])]
        schema = find_schema(reading.rows)
        compared = choose_compared(schema, among=names, hashed=frozenset())
        missing = sorted({*names} - {name for name, _ in compared.columns})
        assert not missing, missing
        texts = write_texts(schema)
        written = reading.rows.select(
            *(texts[name].alias(f"c{i}") for i, (name, _) in enumerate(compared.columns)),
            functions.array_join("_holes", ",").alias("holes"),
        )
        lake_rows = _load(connection, written, len(compared.columns) + 1)
        own = sql.SQL("select {}, null::text from {}").format(
            sql.SQL(", ").join(write_text(name, form) for name, form in compared.columns), source
        )
        theirs = sql.SQL("select * from pg_temp.lake_rows")
        counted = connection.execute(
            sql.SQL(
                "select (select count(*) from {table}),"
                " (select count(*) from ({own} except all {theirs}) a),"
                " (select count(*) from ({theirs} except all {own}) b)"
            ).format(table=source, own=own, theirs=theirs)
        ).fetchone()
        assert counted is not None
    source_rows, only_in_source, only_in_lake = counted
    halt = None if reading.halt is None else reading.halt.reason
    return Comparison(table, source_rows, lake_rows, only_in_source, only_in_lake, halt)


def _load(connection: psycopg.Connection, texts: DataFrame, columns: int) -> int:
    """Fill the temporary table `lake_rows` of this transaction; return the number of rows."""
    listed = sql.SQL(", ").join(sql.SQL("c{} text").format(sql.Literal(i)) for i in range(columns))
    connection.execute(
        sql.SQL("create temporary table lake_rows ({}) on commit drop").format(listed)
    )
    found = texts.toArrow()
    with (
        connection.cursor() as cursor,
        cursor.copy("copy pg_temp.lake_rows from stdin (format csv)") as copy,
    ):
        for batch in found.to_batches():
            copy.write(_write_csv(batch))
    return int(found.num_rows)


def _write_csv(batch: pa.RecordBatch) -> bytes:
    """Write rows as COPY reads them: every text in quotes, NULL as nothing."""
    lines = io.BytesIO()
    options = csv.WriteOptions(include_header=False, quoting_style="all_valid")
    csv.write_csv(batch, lines, options)
    return lines.getvalue()
