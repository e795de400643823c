"""Relations for the decoder, and the same as the oracle wants them."""

from __future__ import annotations

from cdc_core.protocol.rows import RelationFrom
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName
from tests.protocol.oracle import Shape


def relation_from(first_row: int, oid: int, name: str, width: int) -> RelationFrom:
    """Announce a relation of text columns, the first of them its key."""
    columns = tuple(
        Column(
            name=f"column_{number}",
            attnum=number,
            type_oid=25,
            type_modifier=-1,
            type_name="text",
            not_null=False,
            key_ordinal=1 if number == 1 else None,
            in_identity=number == 1,
        )
        for number in range(1, width + 1)
    )
    table = TableName("public", name)
    return RelationFrom(first_row, Relation(oid, table, ReplicaIdentity.DEFAULT, columns))


def shape_of(entry: RelationFrom) -> Shape:
    """Tell the oracle what it needs of an announced relation."""
    relation = entry.relation
    return Shape(
        first_row=entry.first_row,
        oid=relation.oid,
        table=str(relation.table),
        version=relation.version,
        width=len(relation.columns),
    )
