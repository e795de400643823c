"""What waits in the spool is whole and private, or is not there; one process owns a backfill."""

from __future__ import annotations

import fcntl
import os
import random
import time
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from cdc_core.errors import Retry, StagingError
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.spooled import Chunk
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.vocabulary import Column, Relation, ReplicaIdentity, TableName

BACKFILL, MEMORY = "a" * 32, "b" * 32
RELATION = Relation(
    1,
    TableName("public", 'o"dd'),
    ReplicaIdentity.DEFAULT,
    (
        Column("id", 1, 20, -1, "bigint", not_null=True, key_ordinal=1, in_identity=True),
        Column("b", 2, 25, -1, "text", not_null=False, key_ordinal=None, in_identity=False),
    ),
)
ROWS = [["1", None], ["2", ""], ["3", "é\n"], ["4", "x" * 5000]]
TEXTS = DECODED_SCHEMA.field("values").type
CHUNK = Chunk(RELATION, pa.chunked_array([ROWS[:1], ROWS[1:]], TEXTS), None, ("4",))


def store(folder: Path, chunk: Chunk = CHUNK) -> Path:
    size = ChunkFolder(folder).store(chunk, backfill=BACKFILL, memory=MEMORY, number=3, attempt=2)
    (path,) = folder.glob("chunk-*")
    assert path.stat().st_size == size
    return path


def load(folder: Path) -> Chunk | None:
    return ChunkFolder(folder).load(backfill=BACKFILL, memory=MEMORY, number=3, attempt=2)


@pytest.mark.parametrize(
    "chunk",
    [
        CHUNK,
        Chunk(RELATION, CHUNK.values.slice(1, 2), ("1",), None),
        Chunk(RELATION, CHUNK.values.slice(0, 0), None, None, (("7",), ("8",))),
    ],
    ids=["whole", "slice", "empty"],
)
def test_a_chunk_comes_back_as_it_was(tmp_path: Path, chunk: Chunk) -> None:
    spool = tmp_path / "spool"
    path = store(spool, chunk)
    assert path.stat().st_mode & 0o777 == 0o600
    assert spool.stat().st_mode & 0o777 == 0o700
    loaded = load(spool)
    assert loaded is not None
    assert loaded.values.equals(chunk.values)
    assert (loaded.relation, loaded.low, loaded.high, loaded.asked) == (
        RELATION,
        chunk.low,
        chunk.high,
        chunk.asked,
    )
    ChunkFolder(spool).discard(backfill=BACKFILL, memory=MEMORY, number=3, attempt=2)
    assert load(spool) is None


def test_a_file_that_was_cut_off_is_none(tmp_path: Path) -> None:
    path = store(tmp_path)
    whole = path.read_bytes()
    for length in (*range(0, len(whole), 97), len(whole) - 1):
        path.write_bytes(whole[:length])
        assert load(tmp_path) is None


def test_bytes_that_were_changed_are_none_or_texts(tmp_path: Path) -> None:
    chance = random.Random(6)
    rows = [[str(n), f"value {n}"] for n in range(40)]
    chunk = Chunk(RELATION, pa.chunked_array([rows], TEXTS), None, ("4",))
    path = store(tmp_path, chunk)
    whole = path.read_bytes()
    refused = 0
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(chance.choice((1, 1, 4, 16))):
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        path.write_bytes(changed)
        loaded = load(tmp_path)
        refused += loaded is None
        assert loaded is None or all(
            text is None or isinstance(text, str)
            for row in loaded.values.to_pylist()
            for text in row
        )
    assert refused > 20


def test_what_is_no_chunk_at_all_is_none(tmp_path: Path) -> None:
    path = store(tmp_path)
    others = pa.table({"values": [["1"]], "more": [1]})
    described = pa.schema([DECODED_SCHEMA.field("values")]).with_metadata({"walgate.chunk": "[]"})
    plain = pa.schema([DECODED_SCHEMA.field("values")])
    for rows in (
        others,
        pa.Table.from_arrays([CHUNK.values], schema=plain),
        pa.Table.from_arrays([CHUNK.values], schema=described),
    ):
        with pa.ipc.new_file(path, rows.schema) as writer:
            writer.write_table(rows)
        assert load(tmp_path) is None


def test_a_lock_that_another_holds_for_a_moment_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = os.open(tmp_path / f"backfill-{BACKFILL}.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert ChunkFolder(tmp_path).is_claimed(BACKFILL)
    # Not `time.sleep` itself: threads of libraries sleep, too, and would close it again.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: os.close(held))
    monkeypatch.setattr("cdc_core.staging.chunks.time", clock)
    with ChunkFolder(tmp_path).claim(BACKFILL):
        assert ChunkFolder(tmp_path).is_claimed(BACKFILL)
    assert not ChunkFolder(tmp_path).is_claimed(BACKFILL)


def test_a_lock_that_another_keeps_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc_core.staging.chunks._MOMENT_S", 0.05)
    store(tmp_path)
    with (
        ChunkFolder(tmp_path).claim("c" * 32),
        ChunkFolder(tmp_path).claim(BACKFILL),
    ):
        path = store(tmp_path)
        with pytest.raises(StagingError, match="another process") as refused:
            ChunkFolder(tmp_path).claim(BACKFILL).__enter__()
        assert refused.value.retry is Retry.LATER
        assert path.exists(), "it is its owner's"


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_lock_whose_file_was_removed_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_made_again: bool
) -> None:
    lock = tmp_path / f"backfill-{BACKFILL}.lock"
    locking = fcntl.flock
    removed: list[int] = []

    def remove_first(descriptor: int, operation: int) -> None:
        if not removed:
            removed.append(descriptor)
            lock.unlink()
            if is_made_again:
                lock.touch()
        locking(descriptor, operation)

    monkeypatch.setattr("cdc_core.staging.chunks.fcntl.flock", remove_first)
    with ChunkFolder(tmp_path).claim(BACKFILL):
        assert removed
        assert ChunkFolder(tmp_path).is_claimed(BACKFILL), "another would find it free"
