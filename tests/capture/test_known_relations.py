from __future__ import annotations

from dataclasses import replace

from cdc_core.capture.known_relations import KnownRelations
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName

_ID = Column("id", 1, 20, -1, "bigint", not_null=True, key_ordinal=1, in_identity=True)
_V = Column("v", 2, 25, -1, "text", not_null=False, key_ordinal=None, in_identity=False)
BEFORE = Relation(
    5,
    TableName("public", "t"),
    ReplicaIdentity.DEFAULT,
    (replace(_ID, catalog_xid=700), replace(_V, catalog_xid=700)),
    storage=0,
)
MOVED = replace(BEFORE, storage=20_000)
REWRITTEN = replace(
    BEFORE, storage=30_000, columns=(BEFORE.columns[0], replace(_V, catalog_xid=900))
)


def test_chunks_before_and_after_a_rewrite_differ_though_the_log_has_stored_neither() -> None:
    known = KnownRelations(lambda _: None)
    first, moved = land(known, BEFORE), land(known, MOVED)
    assert first.version == moved.version
    second = land(known, REWRITTEN)
    assert second.version != first.version
    assert land(known, REWRITTEN).version == second.version
    assert known.find(5) == second


def test_an_announcement_is_completed_after_the_chunk_before_it() -> None:
    known = KnownRelations({5: BEFORE}.get)
    assert known.find(5) == BEFORE
    chunk = land(known, REWRITTEN)
    assert known.find(5) == chunk
    known.note(replace(chunk, storage=40_000))
    assert known.compare(replace(REWRITTEN, storage=40_000)).version == chunk.version


def test_a_chunk_that_is_only_compared_is_not_known() -> None:
    known = KnownRelations(lambda _: None)
    known.compare(BEFORE)
    assert known.find(5) is None


def land(known: KnownRelations, relation: Relation) -> Relation:
    """Compare the relation of a chunk, and note it as one that is taken into the log."""
    compared = known.compare(relation)
    known.note(compared)
    return compared
