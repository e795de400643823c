"""COPY's text format against the server that writes it, and against what cannot be text."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.protocol.copied import parse_copied
from tests.postgres_server import Database

TEXTS = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0")),
    st.text("\\Nnrtbfv.\t\n\r\b\f\v é"),
)
PLAIN = st.one_of(st.none(), st.text("Nab v.\x01\x07\x0e"))


def escape(text: str | None) -> str:
    """Write a value as the documentation of COPY says."""
    if text is None:
        return "\\N"
    pairs = zip("\\\b\f\n\r\t\v", "\\bfnrtv", strict=True)
    return text.translate({ord(plain): f"\\{letter}" for plain, letter in pairs})


@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS)))
def test_texts_of_all_sorts_come_back(rows: list[tuple[str | None, ...]]) -> None:
    data = "".join("\t".join(map(escape, row)) + "\n" for row in rows)
    assert parse_copied(data.encode()).to_pylist() == [text for row in rows for text in row]


@given(st.lists(st.tuples(PLAIN, PLAIN)))
def test_what_is_simple_is_read_as_beside_what_is_not(rows: list[tuple[str | None, ...]]) -> None:
    data = "".join("\t".join(map(escape, row)) + "\n" for row in rows).encode()
    simple = parse_copied(data)
    assert simple.to_pylist() == [text for row in rows for text in row]
    for hard in ("\\\\\t\\N\n", "\\\\N\té\n", "\\N\té\n"):
        beside = parse_copied(data + hard.encode())
        beside.validate(full=True)
        assert beside.slice(0, len(simple)).equals(simple)


def test_what_the_server_writes_is_read_as_its_values(database18: Database) -> None:
    hostile = [
        "",
        "\\",
        "\\\\",
        "\\N",
        "\\.",
        "a\tb\nc\rd\be\ff\vg",
        "N",
        "\\\n",
        "é😀",
        None,
        "\x01",
    ]
    with closing(psycopg.connect(database18.dsn)) as connection:
        connection.execute("create temporary table t (n serial, a text, b text)")
        for text in hostile:
            connection.execute("insert into t (a, b) values (%s, %s)", [text, text])
        with connection.cursor() as cursor, cursor.copy("copy t to stdout") as copied:
            data = b"".join(copied)
    expected = [value for n, text in enumerate(hostile, 1) for value in (str(n), text, text)]
    assert parse_copied(data).to_pylist() == expected


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        parse_copied(b"1\t\xff\n")
