"""The nouns that every package shares: LSN, position, table name, column, relation, operation.

Pure values; no I/O, no clock. An LSN is a byte position in the WAL, written `16/B374D848` wherever
a person reads it. All bounds (staged, merged, cut) are end LSNs: the first byte after a commit
record.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

# The Unix epoch. The log counts times from it, in microseconds.
UNIX_START = datetime(1970, 1, 1, tzinfo=UTC)

# The prefix of Walgate's own logical messages, the marks. Walgate ignores all other messages.
MARK_PREFIX = "walgate"

_LSN_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})\Z")
_PLAIN_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_NAME_PARTS = 2
_SAFE_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Lsn(int):
    """A WAL position in bytes."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Lsn:
        """Read Postgres' text form. Raises: ValueError."""
        match = _LSN_TEXT.match(text)
        if match is None:
            raise ValueError(f"not an LSN: {text!r}; expected a form such as 16/B374D848")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    def __str__(self) -> str:
        """Postgres' text form."""
        return f"{self >> 32:X}/{self & 0xFFFFFFFF:X}"

    def __repr__(self) -> str:
        """Postgres' text form, marked as an LSN."""
        return f"Lsn({self})"

    def __format__(self, spec: str) -> str:
        """Postgres' text form; with a `spec`, the integer in that format."""
        return format(int(self), spec) if spec else str(self)


class Operation(StrEnum):
    """What an entry of the log does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    TRUNCATE = "truncate"
    READ = "read"
    SWEEP = "sweep"
    MARK = "mark"
    UNDECODED = "undecoded"


class ReplicaIdentity(StrEnum):
    """Which old columns the source sends, by the letter of `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A change's place in the log: epoch, commit LSN, number in its transaction."""

    epoch: int
    commit_lsn: Lsn
    seq: int


class TableMode(StrEnum):
    """What the settings may ask for of a table."""

    CURRENT = "current"
    """The rows that the source has."""
    SOFT_DELETE = "soft_delete"
    """Also the rows that the source deleted, with a mark."""
    HISTORY = "history"
    """Also each version that a row had, in a target of its own."""
    APPEND = "append"
    """Also each entry of the log about the table, in a target of its own."""


# A table has its rows in exactly one of these modes.
ROW_MODES = (TableMode.CURRENT, TableMode.SOFT_DELETE)


@dataclass(frozen=True, slots=True)
class TransactionId:
    """Identifies one transaction in a server's history."""

    commit_lsn: Lsn
    xid: int
    committed_at_us: int


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """A source table, by schema and name as the catalog spells them."""

    schema: str
    name: str

    def __str__(self) -> str:
        """The name as Postgres would quote it: `public.orders`, `"odd.schema"."T"`."""
        return f"{quote_identifier(self.schema)}.{quote_identifier(self.name)}"

    @classmethod
    def parse(cls, text: str) -> TableName:
        """Read `schema.name`, quoted or not. Raises: ValueError."""
        parts: list[str] = []
        position = 0
        pattern = re.compile(r'"((?:[^"]|"")+)"|([^".\s]+)')
        while True:
            match = pattern.match(text, position)
            if match is None:
                break
            parts.append(match[2] if match[1] is None else match[1].replace('""', '"'))
            position = match.end()
            if position == len(text) or text[position] != ".":
                break
            position += 1
        if len(parts) != _NAME_PARTS or position != len(text):
            raise ValueError(f'not a table name: {text!r}; expected schema.name or "schema"."name"')
        return cls(*parts)


@dataclass(frozen=True, slots=True)
class Column:
    """A column as the stream announced it, completed from the catalog.

    `attnum` is None if the catalog no longer shows the column: it was renamed or dropped since.
    `key_ordinal` is the column's place in the primary key, from 1; None outside the key.
    `missing_value` is the text that rows older than the column have (ADD COLUMN … DEFAULT).
    `has_default` with no missing value means that the stream cannot show what older rows have.
    `base_oid` and `base_modifier` are the type below a domain; None and -1 for any other type.
    `catalog_xid` is the transaction that wrote the column's catalog row last; None if it is not
    known. It does not change the relation version.
    `hashed_by` identifies the key that hashes the values; None if the values are as sent.
    """

    name: str
    attnum: int | None
    type_oid: int
    type_modifier: int
    type_name: str
    not_null: bool
    key_ordinal: int | None
    in_identity: bool
    missing_value: str | None = None
    has_default: bool = False
    base_oid: int | None = None
    base_modifier: int = -1
    catalog_xid: int | None = field(default=None, compare=False)
    hashed_by: str | None = None


_COLUMN_FIELDS = tuple(field.name for field in fields(Column))
_VERSIONED = tuple(field.name for field in fields(Column) if field.compare)


@dataclass(frozen=True, slots=True)
class Relation:
    """A table's columns and key as announced in the stream; values are in column order.

    `published` names the memberships in publications by which the source sends the table. If it
    changes, the source may have left out changes in between. None if it is not known.
    `storage` identifies the files that held the rows when the table had only these columns. If it
    changes, values may have changed without a row change in the stream. None if it is not known.
    It does not change the relation version.
    `rewritten` changes each time that values may have changed without a row change in the stream,
    and each time that the table is renamed. It is 0 until the first such time.
    `left_out` are the attnums of columns that a rule kept from the log, by this announcement or an
    earlier one. If the catalog no longer showed such a column, the list has every attnum that it
    may have had; 0 means any attnum.
    `width` is the largest attnum that the catalog has given so far. The log does not store it.
    """

    oid: int
    table: TableName
    identity: ReplicaIdentity
    columns: tuple[Column, ...]
    published: str | None = None
    storage: int | None = field(default=None, compare=False)
    rewritten: int = 0
    left_out: tuple[int, ...] = ()
    width: int | None = field(default=None, compare=False)

    @property
    def version(self) -> int:
        """A hash of the content, 63 bits. The same announcement replayed has the same version."""
        content = json.dumps(
            [
                self.oid,
                self.table.schema,
                self.table.name,
                str(self.identity),
                [[getattr(column, field) for field in _VERSIONED] for column in self.columns],
                self.published,
                self.rewritten,
                self.left_out,
            ],
            ensure_ascii=True,
        )
        digest = hashlib.sha256(content.encode("ascii")).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def describe(self) -> dict[str, Any]:
        """The relation as plain values, by the names of the columns of `staging/relations`."""
        return {
            "oid": self.oid,
            "schema": self.table.schema,
            "name": self.table.name,
            "identity": str(self.identity),
            "columns": [
                {field: getattr(column, field) for field in _COLUMN_FIELDS}
                for column in self.columns
            ],
            "published": self.published,
            "storage": self.storage,
            "rewritten": self.rewritten,
            "left_out": list(self.left_out),
        }

    @classmethod
    def from_description(cls, described: Mapping[str, Any]) -> Relation:
        """The relation of a description. Other keys of the description are ignored."""
        return cls(
            oid=described["oid"],
            table=TableName(described["schema"], described["name"]),
            identity=ReplicaIdentity(described["identity"]),
            columns=tuple(Column(**column) for column in described["columns"]),
            published=described["published"],
            storage=described["storage"],
            rewritten=described["rewritten"],
            left_out=tuple(described["left_out"]),
        )

    def after(self, previous: Relation | None) -> Relation:
        """The relation with the `rewritten` and `left_out` that follow from the previous one.

        Columns that were left out before stay on the list, because older rows lack their values.

        The stream does not report `ALTER COLUMN … TYPE … USING` with the type that the column has.
        But this command writes both the table's files and the column's row of the catalog. Anything
        else that writes both, such as VACUUM FULL after ADD COLUMN … DEFAULT, counts as the same.

        The log has changes under the name that the table had then. So a table that is renamed, and
        renamed back, lacks the changes that it had under its other name.
        """
        if previous is None:
            return self
        rewritten = previous.rewritten if previous.table == self.table else previous.version
        is_written = None in {self.storage, previous.storage} or self.storage != previous.storage
        before = {column.name: column.catalog_xid for column in previous.columns}
        changed = [
            column.catalog_xid
            for column in self.columns
            if column.catalog_xid is not None
            and (earlier := before.get(column.name, column.catalog_xid)) != column.catalog_xid
            and (is_written or earlier is None)
        ]
        left_out = {*self.left_out, *previous.left_out}
        return replace(
            self,
            rewritten=max(changed, default=rewritten),
            left_out=tuple(sorted(left_out)),
        )

    @property
    def key(self) -> tuple[int, ...]:
        """Indexes of the columns that identify a row in the stream, in key order.

        Under replica identity default and index these are the identity's columns, under full the
        primary key. Empty if rows have no key.
        """
        match self.identity:
            case ReplicaIdentity.DEFAULT | ReplicaIdentity.INDEX:
                chosen = [i for i, column in enumerate(self.columns) if column.in_identity]
            case ReplicaIdentity.FULL:
                chosen = [i for i, c in enumerate(self.columns) if c.key_ordinal is not None]
            case ReplicaIdentity.NOTHING:
                chosen = []
        return tuple(sorted(chosen, key=lambda i: self.columns[i].key_ordinal or i + 1))


def format_time(time: datetime, unit: str = "auto") -> str:
    """A time in ISO 8601 and UTC, cut to a unit of `datetime.isoformat`."""
    return time.astimezone(UTC).isoformat(timespec=unit).replace("+00:00", "Z")


def quote_identifier(name: str) -> str:
    """Quote an identifier if Postgres' own output would. Reserved words are not quoted."""
    if _PLAIN_IDENTIFIER.match(name):
        return name
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def encode_column(name: str) -> str:
    """Spell the name of a source's column; `_` begins only the names of the lake's own columns."""
    encoded = encode_name(name)
    return f"~5F{encoded[1:]}" if encoded.startswith("_") else encoded


def encode_name(name: str) -> str:
    """Spell a name for paths and columns: each UTF-8 byte outside `[A-Za-z0-9_-]` as `~XX`."""
    return "".join(
        chr(byte) if byte in _SAFE_BYTES else f"~{byte:02X}" for byte in name.encode("utf-8")
    )
