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
    first, moved = known.compare(BEFORE), known.compare(MOVED)
    assert first.version == moved.version
    second = known.compare(REWRITTEN)
    assert second.version != first.version
    assert known.compare(REWRITTEN).version == second.version
    assert known.find(5) == second


def test_an_announcement_is_completed_after_the_chunk_before_it() -> None:
    known = KnownRelations({5: BEFORE}.get)
    assert known.find(5) == BEFORE
    chunk = known.compare(REWRITTEN)
    assert known.find(5) == chunk
    known.note(replace(chunk, storage=40_000))
    assert known.compare(replace(REWRITTEN, storage=40_000)).version == chunk.version
