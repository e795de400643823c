from __future__ import annotations

from cdc_core.backfill.changed_keys_request import ChangedKeysRequest
from cdc_core.vocabulary import Lsn, Position

FIRST, LATER = Position(1, Lsn(8), 0), Position(1, Lsn(16), 0)


def said(step: str, state: str, memory: str = "a") -> dict[str, str]:
    return {"step": step, "memory": memory, "state": state}


def test_chunks_are_read_only_once_all_before_the_memory_is_seen() -> None:
    memory = ChangedKeysRequest("a")
    memory.note(said("begin", "kept", "b"), FIRST)
    assert not memory.is_answered
    memory.note(said("begin", "kept"), FIRST)
    memory.note(said("alive", "kept"), LATER)
    assert memory.is_answered
    assert memory.remembered_from == FIRST
    assert not memory.is_usable
    memory.is_settled = True
    assert memory.is_usable


def test_a_memory_that_was_forgotten_once_stays_forgotten() -> None:
    for step in ("begin", "alive", "watermark"):
        memory = ChangedKeysRequest("a", is_settled=True)
        memory.note(said(step, "void", "b"), FIRST)
        assert memory.is_usable
        memory.note(said(step, "void"), FIRST)
        memory.note(said("begin", "kept"), LATER)
        assert memory.is_answered
        assert not memory.is_usable
