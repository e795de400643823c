r"""Writes the rows of an answer as text: a table for a terminal, TSV or CSV for programs.

TSV is PostgreSQL's COPY text form, with `\N` for NULL. In CSV, NULL is empty and an empty text is
`""`. Spark converts the values to text, so that no value passes through a Python type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TextIO

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import Column, DataFrame, functions
from pyspark.sql.types import ArrayType, BinaryType, MapType, StructField, StructType, VariantType

# Most rows of a table. The other forms have no limit and hold one partition at a time.
TABLE_ROWS = 1000

_Row = Iterable[str | None]
_TSV_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write_rows(rows: DataFrame, form: str, out: TextIO) -> None:
    """Write a header and the rows."""
    texts = _write_as_text(rows)
    if form == "table":
        _write_table(rows.columns, _read(texts.limit(TABLE_ROWS + 1)), out)
        return
    format_row = format_csv if form == "csv" else format_tsv
    # Read a row before the header: a query that fails at once then writes nothing.
    read = _read(texts)
    first = next(read, None)
    out.write(format_row(rows.columns) + "\n")
    if first is not None:
        out.writelines(format_row(row) + "\n" for row in chain((first,), read))


def format_tsv(row: _Row) -> str:
    """Write a row as COPY's text form does."""
    return "\t".join("\\N" if text is None else text.translate(_TSV_ESCAPES) for text in row)


def format_csv(row: _Row) -> str:
    """Write a row as COPY's CSV form does."""
    return ",".join("" if text is None else _quote_csv(text) for text in row)


def _quote_csv(text: str) -> str:
    if text and not any(character in text for character in ',"\r\n'):
        return text
    escaped = text.replace('"', '""')
    return f'"{escaped}"'


def _write_as_text(rows: DataFrame) -> DataFrame:
    # Column names may repeat; numbers do not.
    numbered = rows.toDF(*(f"c{index}" for index in range(len(rows.columns))))
    return numbered.select(*(_as_text(field) for field in numbered.schema.fields))


def _as_text(field: StructField) -> Column:
    column = functions.col(field.name)
    if isinstance(field.dataType, BinaryType):
        return functions.concat(functions.lit("\\x"), functions.lower(functions.hex(column))).alias(
            field.name
        )
    if isinstance(field.dataType, (ArrayType, MapType, StructType, VariantType)):
        return functions.to_json(column, {"ignoreNullFields": "false"}).alias(field.name)
    return column.cast("string").alias(field.name)


def _read(texts: DataFrame) -> Iterator[tuple[str | None, ...]]:
    """Read row by row. Raises: PySparkException."""
    try:
        yield from texts.toLocalIterator()
    except Py4JJavaError as error:
        # PySpark does not convert the errors of this iterator. The deepest cause names it best.
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        raise convert_exception(cause) from error


def _write_table(names: list[str], rows: Iterator[tuple[str | None, ...]], out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in names:
        table.add_column(Text(name))
    for index, row in enumerate(rows):
        if index == TABLE_ROWS:
            table.caption = f"the first {TABLE_ROWS} rows; --format tsv gives all"
            break
        table.add_row(*(Text("NULL", "dim") if text is None else Text(text) for text in row))
    Console(file=out).print(table)
