"""Transcripts of a real server: SQL, the frames it made, and what they are read as.

A file of `tests/wire` has a first line with server version and database encoding, then blocks: the
SQL of one transaction (`> `), and for each frame its bytes (`< `) and its reading (`= `). Write the
SQL of a new one by hand, run `python -m tests.protocol.transcript`, and review the difference.
"""

from __future__ import annotations

import json
import re
import select
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from cdc_core.protocol.frames import HEADER_SIZE, XLOG_DATA
from cdc_core.protocol.messages import ROW_KINDS, Announcement, parse_message
from cdc_core.protocol.rows import RelationFrom, decode_rows
from cdc_core.vocabulary import Column, Relation
from tests.deadline import wait_for
from tests.fix_postgres import run_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.postgres_server import PostgresServer

FOLDER: Final = Path(__file__).parent.parent / "wire"
OUTPUT_SETTINGS: Final = (
    "-c datestyle=ISO -c intervalstyle=postgres -c timezone=UTC"
    " -c extra_float_digits=3 -c bytea_output=hex"
)
END_OF_BLOCK: Final = b"end of block"
READ_DEADLINE_S: Final = 30.0

# What differs from run to run: LSNs, times, xids, and the oids of what the script creates.
_FLEETING: Final = re.compile(
    r"Lsn\([0-9A-F/]+\)|committed_at_us=\d+|xid=\d+|(?<=oid=)\d{5,}|(?<=oids=\()[\d, ]+"
    r'|(?<=message\\": \\"..)[0-9a-f]{8}'
)


@dataclass(frozen=True, slots=True)
class Block:
    """The SQL of one transaction, and the frames that it made."""

    statements: tuple[str, ...]
    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A recorded session."""

    version: int
    encoding: str
    blocks: tuple[Block, ...]
    readings: tuple[str, ...]


def parse_transcript(text: str) -> Transcript:
    """Read a transcript file."""
    heading, *lines = text.splitlines()
    version, encoding = re.findall(r"PostgreSQL (\d+), (\w+)", heading)[0]
    blocks: list[Block] = []
    readings: list[str] = []
    for block in "\n".join(lines).strip().split("\n\n"):
        marked = [(line[:2], line[2:]) for line in block.splitlines()]
        blocks.append(
            Block(
                statements=tuple(rest for mark, rest in marked if mark == "> "),
                frames=tuple(bytes.fromhex(rest) for mark, rest in marked if mark == "< "),
            )
        )
        readings += [rest for mark, rest in marked if mark == "= "]
    return Transcript(int(version), encoding, tuple(blocks), tuple(readings))


def format_transcript(transcript: Transcript) -> str:
    """Write a transcript file."""
    lines = [f"PostgreSQL {transcript.version}, {transcript.encoding}"]
    readings = iter(transcript.readings)
    for block in transcript.blocks:
        lines += ["", *(f"> {statement}" for statement in block.statements)]
        for frame in block.frames:
            lines += [f"< {frame.hex()}", f"= {next(readings)}"]
    return "\n".join(lines) + "\n"


def read_frames(blocks: Sequence[Block]) -> tuple[str, ...]:
    """Read all frames as our protocol does: a line for each."""
    readings: dict[int, str] = {}
    rows: list[bytes] = []
    row_places: list[int] = []
    relations: list[RelationFrom] = []
    frames = [frame for block in blocks for frame in block.frames]
    for place, frame in enumerate(frames):
        if frame[HEADER_SIZE] in ROW_KINDS:
            row_places.append(place)
            rows.append(frame)
            continue
        message = parse_message(frame)
        readings[place] = repr(message)
        if isinstance(message, Announcement):
            relations.append(RelationFrom(len(rows), _complete(message)))
    decoded = decode_rows(rows, relations).drop_columns(["relation_version"]).to_pylist()
    for place, row in zip(row_places, decoded, strict=True):
        present = {name: value for name, value in row.items() if value is not None}
        readings[place] = json.dumps(present, ensure_ascii=False)
    return tuple(readings[place] for place in range(len(frames)))


def redact(readings: Sequence[str]) -> list[str]:
    """Cover what differs from run to run."""
    return [_FLEETING.sub("…", reading) for reading in readings]


def record(server: PostgresServer, transcript: Transcript) -> Transcript:
    """Run the transcript's SQL on a server, in a new database, and keep what it streams."""
    name = "transcript"
    server.execute(
        "postgres",
        f"create database {name} template template0 encoding '{transcript.encoding}'",
    )
    try:
        server.execute(name, "create publication walgate for all tables")
        slot = f"select pg_create_logical_replication_slot('{name}', 'pgoutput')"
        server.query(name, slot)
        with (
            _stream(server, name, transcript.encoding) as stream,
            psycopg.connect(server.dsn(name), autocommit=True) as writer,
        ):
            blocks = tuple(
                Block(block.statements, tuple(_play(stream, writer, block.statements)))
                for block in transcript.blocks
            )
    finally:
        server.drop_database(name)
    return Transcript(transcript.version, transcript.encoding, blocks, read_frames(blocks))


def _play(
    stream: psycopg.Connection[tuple[object, ...]],
    writer: psycopg.Connection[tuple[object, ...]],
    statements: Sequence[str],
) -> Iterator[bytes]:
    """Run a transaction and give its frames, without those of the mark behind it."""
    writer.execute("\n".join(statements).encode())
    writer.execute("select pg_logical_emit_message(true, %s, '')", [END_OF_BLOCK.decode()])
    begin: bytes | None = None
    is_over = False
    while not is_over:
        frame = _next_message(stream)
        kind = frame[HEADER_SIZE : HEADER_SIZE + 1]
        is_over = kind == b"C" and begin is None
        if kind == b"B":
            begin = frame
        elif kind == b"M" and END_OF_BLOCK in frame:
            begin = None
        elif not is_over:
            if begin:
                yield begin
            begin = b""
            yield frame


def _next_message(stream: psycopg.Connection[tuple[object, ...]]) -> bytes:
    """Give the next frame that is not a keepalive."""

    def receive() -> bytes | None:
        size, frame = stream.pgconn.get_copy_data(1)
        if size == 0:
            select.select([stream.fileno()], [], [], 0.1)
            stream.pgconn.consume_input()
        return bytes(frame) if size > 0 and frame[0] == XLOG_DATA else None

    return wait_for(receive, READ_DEADLINE_S, "a message") or b""


@contextmanager
def _stream(
    server: PostgresServer, slot: str, encoding: str
) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Stream from a slot of the database of the same name."""
    # Asked for UTF8, the server verifies the texts of an SQL_ASCII database and ends the stream.
    client_encoding = encoding if encoding == "SQL_ASCII" else "UTF8"
    dsn = server.dsn(slot, replication="database", options=OUTPUT_SETTINGS)
    with closing(
        psycopg.connect(dsn, autocommit=True, client_encoding=client_encoding)
    ) as connection:
        start = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL 0/0"
            " (proto_version '1', publication_names 'walgate', messages 'true')"
        )
        connection.execute(start.format(sql.Identifier(slot)))
        yield connection


def _complete(message: Announcement) -> Relation:
    """Complete an announcement without a catalog."""
    columns = tuple(
        Column(
            name=column.name,
            attnum=None,
            type_oid=column.type_oid,
            type_modifier=column.type_modifier,
            type_name="",
            not_null=False,
            key_ordinal=None,
            in_identity=column.in_identity,
        )
        for column in message.columns
    )
    return Relation(message.oid, message.table, message.identity, columns)


def main() -> None:
    """Record all transcripts again."""
    for path in sorted(FOLDER.glob("*.hex")):
        transcript = parse_transcript(path.read_text())
        with run_postgres(transcript.version) as server:
            path.write_text(format_transcript(record(server, transcript)))


if __name__ == "__main__":
    main()
