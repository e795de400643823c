"""Computes checksums of a table's rows by ranges, and lists the keys of ranges, in PostgreSQL.

Each statement reads the table once. PostgreSQL writes each value by the output function of its
type, as in the stream, with the output settings of the connection. `concat` calls this function; a
cast to text does not for booleans, padded texts and networks. Only sums, ordinals, keys and digests
leave the server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
from psycopg import sql

from cdc_core.comparing import (
    HASH_DIGITS,
    UUID_DIGITS,
    CanonicalForm,
    Compared,
    Ordering,
    OrdinalRange,
    RangeSum,
)
from cdc_core.source.connection import source_errors
from cdc_core.source.published_tables import PublishedTable
from cdc_core.spooled import Key

# A function takes at most 100 arguments.
_ARGUMENTS = 90
_UUID_TEXT_DIGITS = 32
_BIGINT = 1 << 63
# Java gives these bits for every NaN; PostgreSQL may keep the sign of a NaN.
_NAN = {"float4": 0x7FC00000, "float8": 0x7FF8000000000000}
_BITS = {
    "float4": "(('x' || encode(float4send({0}), 'hex'))::bit(32)::int)::text",
    "float8": "(('x' || encode(float8send({0}), 'hex'))::bit(64)::bigint)::text",
}


def sum_ranges(
    connection: psycopg.Connection,
    published: PublishedTable,
    compared: Compared,
    part: OrdinalRange,
    width: int,
) -> dict[int | None, RangeSum]:
    """Sum up the rows of a part by ranges of `width` ordinals. Raises: SourceError."""
    query = sql.SQL(
        "select ordinal / {width}, count(*), bit_xor({first}), bit_xor({second}),"
        " min(ordinal), max(ordinal) from ({rows}) hashed group by 1"
    ).format(
        width=sql.Literal(width),
        first=_piece(1),
        second=_piece(17),
        rows=_hash_rows(connection, published, compared, [part]),
    )
    with source_errors(f"sum up {published.table}"), connection.transaction():
        rows = connection.execute(query).fetchall()
    return {row[0]: RangeSum(*row[1:]) for row in rows}


def list_keys(
    connection: psycopg.Connection,
    published: PublishedTable,
    compared: Compared,
    parts: Sequence[OrdinalRange],
) -> list[tuple[int, Key, str]]:
    """List each row of `parts`: ordinal, texts of its key, digest. Raises: SourceError."""
    query = sql.SQL("select ordinal, key, left(digest, 32) from ({rows}) hashed").format(
        rows=_hash_rows(connection, published, compared, parts)
    )
    with source_errors(f"list keys of {published.table}"), connection.transaction():
        rows = connection.execute(query).fetchall()
    return [(ordinal, tuple(key), digest) for ordinal, key, digest in rows]


def find_span(
    connection: psycopg.Connection, published: PublishedTable, compared: Compared
) -> tuple[int, int] | None:
    """Find the least and the greatest ordinal of a table.

    For an integer key the table gives both; None if it is empty. For the other orderings they are
    the limits of the ordering. Raises: SourceError.
    """
    if compared.ordering.span is not None:
        return compared.ordering.span
    key = sql.Identifier(compared.key[0])
    query = sql.SQL("select min({0})::bigint, max({0})::bigint from {1}").format(
        key, published.rows_of
    )
    with source_errors(f"look at the keys of {published.table}"), connection.transaction():
        row = connection.execute(query).fetchone()
    return None if row is None or row[0] is None else (row[0], row[1])


def find_ordinal_after(
    connection: psycopg.Connection,
    published: PublishedTable,
    compared: Compared,
    low: int | None,
    rows: int,
) -> int | None:
    """Find the ordinal at which a part ends that begins at `low` and has `rows` rows.

    None if the table has no row after such a part. The order of the ordinals must be the order of
    an index of the table. Raises: SourceError.
    """
    key = sql.Identifier(compared.key[0])
    query = sql.SQL("select {} from {} where {} order by {} offset {} limit 1").format(
        _ordinal_of_key(compared),
        published.rows_of,
        _within(compared, [OrdinalRange(low)]),
        key,
        sql.Literal(rows),
    )
    with source_errors(f"look at the keys of {published.table}"), connection.transaction():
        row = connection.execute(query).fetchone()
    return None if row is None else int(row[0])


def write_text(name: str, form: CanonicalForm) -> sql.Composed:
    """Build the SQL that writes a column's value as text in `form`; NULL if the value is NULL."""
    column = sql.Identifier(name)
    match form:
        case CanonicalForm.TEXT:
            written: sql.Composable = sql.SQL("concat({})").format(column)
        case CanonicalForm.PRESENCE:
            written = sql.SQL("'x'")
        case CanonicalForm.FLOAT4 | CanonicalForm.FLOAT8:
            written = _write_float(sql.SQL("concat({})").format(column), form.value)
        case CanonicalForm.FLOAT4_ARRAY | CanonicalForm.FLOAT8_ARRAY:
            kind = form.value.removesuffix("[]")
            written = sql.SQL(
                "case when array_ndims({a}) is null then '{{}}'"
                " when array_ndims({a}) = 1 and array_lower({a}, 1) = 1 then"
                " (select concat('{{', string_agg(coalesce({bits}, 'NULL'), ',' order by n), '}}')"
                " from unnest({a}) with ordinality as element (e, n))"
                " else concat({column}) end"
            ).format(
                a=sql.SQL("concat({})::" + form.value).format(column),
                bits=_write_float(sql.SQL("e"), kind),
                column=column,
            )
    # `is not null` would treat a composite value of NULLs as NULL.
    return sql.SQL("case when {} is distinct from null then {} end").format(column, written)


def _write_float(value: sql.Composable, kind: str) -> sql.Composed:
    number = sql.SQL("{}::" + kind).format(value)
    return sql.SQL("case when {0} = 'NaN' then {1} else {2} end").format(
        number, sql.Literal(str(_NAN[kind])), sql.SQL(_BITS[kind]).format(number)
    )


def _hash_rows(
    connection: psycopg.Connection,
    published: PublishedTable,
    compared: Compared,
    parts: Sequence[OrdinalRange],
) -> sql.Composed:
    """Build the query that gives `ordinal, key, digest` of each row.

    `offset 0` keeps the levels of the query apart, so that PostgreSQL writes each text once.
    """
    encoding = connection.info.parameter_status("server_encoding")
    target = "SQL_ASCII" if encoding == "SQL_ASCII" else "UTF8"
    is_utf8 = encoding in {"UTF8", "SQL_ASCII"}
    names = [name for name, _ in compared.columns]
    texts = sql.SQL(", ").join(
        sql.SQL("{} as {}").format(write_text(name, form), _number(i))
        for i, (name, form) in enumerate(compared.columns)
    )
    keys = sql.SQL(", ").join(
        sql.SQL("concat({})").format(sql.Identifier(name)) for name in compared.key
    )
    conditions: list[sql.Composable | None] = [published.row_filter]
    is_hash = compared.ordering is Ordering.HASH
    if not is_hash:
        conditions.append(_within(compared, parts))
    read = sql.SQL("select {}, array[{}] as key, {} as ordinal from {} where {} offset 0").format(
        texts,
        keys,
        sql.SQL("null::bigint") if is_hash else _ordinal_of_key(compared),
        published.rows_of,
        sql.SQL(" and ").join([one for one in conditions if one] or [sql.SQL("true")]),
    )
    if is_hash:
        key_text = _join_texts([names.index(name) for name in compared.key], is_utf8=is_utf8)
        place = sql.SQL("('x' || left({}, {digits}))::bit({bits})::bigint").format(
            _digest(key_text, target),
            digits=sql.Literal(HASH_DIGITS),
            bits=sql.Literal(4 * HASH_DIGITS),
        )
        numbers = sql.SQL(", ").join(_number(i) for i in range(len(names)))
        read = sql.SQL(
            "select * from (select {}, key, {} as ordinal from ({}) texts offset 0) placed where {}"
        ).format(numbers, place, read, _write_parts(sql.SQL("ordinal"), parts, _bound_integer))
    row_text = _join_texts(range(len(names)), is_utf8=is_utf8)
    return sql.SQL("select ordinal, key, {} as digest from ({}) texts offset 0").format(
        _digest(row_text, target), read
    )


def _join_texts(numbers: Sequence[int], *, is_utf8: bool) -> sql.Composed:
    size = "octet_length({0})" if is_utf8 else "octet_length(convert_to({0}, 'UTF8'))"
    pieces = [sql.SQL(size + ", ':', {0}").format(_number(i)) for i in numbers]
    most = _ARGUMENTS // 3
    groups = [
        sql.SQL("concat({})").format(sql.SQL(", ").join(pieces[i : i + most]))
        for i in range(0, len(pieces), most)
    ]
    return sql.SQL(" || ").join(groups)


def _digest(text: sql.Composable, encoding: str) -> sql.Composed:
    return sql.SQL("encode(sha256(convert_to({}, {})), 'hex')").format(text, sql.Literal(encoding))


def _piece(start: int) -> sql.Composed:
    return sql.SQL("('x' || substr(digest, {}, 16))::bit(64)::bigint").format(sql.Literal(start))


def _number(index: int) -> sql.Identifier:
    return sql.Identifier(f"c{index}")


def _ordinal_of_key(compared: Compared) -> sql.Composed:
    key = sql.Identifier(compared.key[0])
    if compared.ordering is Ordering.INTEGER:
        return sql.SQL("{}::bigint").format(key)
    return sql.SQL(
        "('x' || left(replace({}::text, '-', ''), {digits}))::bit({bits})::bigint"
    ).format(key, digits=sql.Literal(UUID_DIGITS), bits=sql.Literal(4 * UUID_DIGITS))


def _within(compared: Compared, parts: Sequence[OrdinalRange]) -> sql.Composed:
    """Build the condition that a row is in one of the parts; the key's index can serve it."""
    key = sql.Identifier(compared.key[0])
    if compared.ordering is Ordering.INTEGER:
        return _write_parts(key, parts, _bound_integer)
    return _write_parts(key, parts, _bound_uuid)


def _write_parts(
    place: sql.Composable,
    parts: Sequence[OrdinalRange],
    bound: Callable[[int], sql.Composable | None],
) -> sql.Composed:
    written: list[sql.Composable] = []
    for part in parts:
        low = None if part.low is None else bound(part.low)
        high = None if part.high is None else bound(part.high)
        sides = [
            sql.SQL("{} {} {}").format(place, sql.SQL(comparison), limit)
            for comparison, limit in ((">=", low), ("<", high))
            if limit is not None
        ]
        written.append(sql.SQL(" and ").join(sides) if sides else sql.SQL("true"))
    return sql.SQL("({})").format(sql.SQL(" or ").join(written))


def _bound_integer(ordinal: int) -> sql.Composable | None:
    """Write a bound as a bigint; None if it is outside the range of bigint."""
    return sql.Literal(ordinal) if -_BIGINT <= ordinal < _BIGINT else None


def _bound_uuid(ordinal: int) -> sql.Composable | None:
    if ordinal >> 4 * UUID_DIGITS:
        return None
    digits = f"{ordinal:0{UUID_DIGITS}x}".ljust(_UUID_TEXT_DIGITS, "0")
    return sql.SQL("{}::uuid").format(sql.Literal(digits))
