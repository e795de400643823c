"""Relations and entries in few words."""

from __future__ import annotations

import json
from typing import Any

from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName

OIDS = {"int4": 23, "int8": 20, "text": 25, "numeric": 1700, "float8": 701, "date": 1082,
        "timestamp": 1114, "timestamptz": 1184, "uuid": 2950, "bytea": 17, "bool": 16}  # fmt: skip

Entry = tuple[Relation, dict[str, Any]]


def make_relation(
    name: str, columns: str, *, key: str = "k", identity: str = "d", oid: int = 0, **more: Any
) -> Relation:
    """A relation of `"k int4, v text"`; `more` gives fields of columns by name."""
    keys = key.split()
    made = []
    for i, spec in enumerate(columns.split(", ")):
        column, kind = spec.rsplit(" ", 1)
        place = keys.index(column) + 1 if column in keys else None
        fields = {"attnum": i + 1} | more.get(column, {})
        made.append(
            Column(
                column,
                type_oid=OIDS[kind],
                type_modifier=-1,
                type_name=kind,
                not_null=False,
                key_ordinal=place,
                in_identity=place is not None or identity == "f",
                **fields,
            )
        )
    table = TableName.parse(name) if "." in name else TableName("public", name)
    number = oid or 16384 + sum(str(table).encode())
    return Relation(number, table, ReplicaIdentity(identity), tuple(made))


def insert(relation: Relation, *values: str | None) -> Entry:
    return relation, {"op": "insert", "values": list(values)}


def update(
    relation: Relation,
    *values: str | None,
    old: list[str | None] | None = None,
    unchanged: list[int] | None = None,
) -> Entry:
    entry = {"op": "update", "values": list(values), "old_values": old, "unchanged": unchanged}
    return relation, entry


def delete(relation: Relation, *old: str | None) -> Entry:
    return relation, {"op": "delete", "old_values": list(old)}


def truncate(relation: Relation) -> Entry:
    return relation, {"op": "truncate"}


def read(relation: Relation, *values: str | None) -> Entry:
    return relation, {"op": "read", "values": list(values)}


def sweep(
    relation: Relation,
    *,
    start: int,
    seq: int = 0,
    low: list[str] | None = None,
    high: list[str] | None = None,
) -> Entry:
    """What is older than an entry of the transaction that ends at `start` is gone, of a range."""
    detail = {"start": [1, start - 8, seq], "low": low, "high": high}
    return relation, {"op": "sweep", "detail": json.dumps(detail)}


def mark(relation: Relation) -> Entry:
    """A mark beside the changes of some relation."""
    return relation, {"table": None, "relation_version": None, "op": "mark"}
