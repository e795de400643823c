"""Chunks and sweeps in the spool: what a backfill has read and the log has not taken yet.

A worker completes a file before it writes the message that names the file to the WAL. The file need
not be durable: if the host fails, capture ends, too. A capture that takes the slot removes the
files that it finds, because nobody knows which of their rows are stale. Only the holder of the slot
takes files. The files are private (0600), because they have rows.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from cdc_core.errors import Retry, StagingError
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.spooled import Chunk, Key, Scope, SweepRequest
from cdc_core.staging.tables import staging_errors
from cdc_core.vocabulary import Lsn, Position, Relation

_VALUES = pa.schema([DECODED_SCHEMA.field("values")])
_BYTES = pa.list_(_VALUES.field("values").type.value_field.with_type(pa.binary()))
_FIRST_NOT_ASCII = 0x80
_ABOUT = b"walgate.chunk"
_MOMENT_S = 5.0


class ChunkFolder:
    """The spool: workers write files into it, and capture takes them."""

    def __init__(self, spool: Path) -> None:
        """The folder need not exist yet."""
        self._folder = spool

    def store(self, chunk: Chunk, *, backfill: str, memory: str, number: int, attempt: int) -> int:
        """Write one attempt at a chunk; return its size in bytes. Raises: StagingError."""
        about = {
            "relation": chunk.relation.describe(),
            "by": chunk.by,
            "low": chunk.low,
            "high": chunk.high,
            "asked": chunk.asked,
        }
        schema = _VALUES.with_metadata({_ABOUT: json.dumps(about).encode()})
        rows = pa.Table.from_arrays([chunk.values], schema=schema)
        path = self._chunk_path(backfill, memory, number, attempt)
        with _writing(path) as descriptor, os.fdopen(descriptor, "wb") as file:
            # The file has Arrow's memory layout: this host reads it once, a moment later.
            with pa.ipc.new_file(file, schema) as writer:
                writer.write_table(rows)
            return file.tell()

    def load(self, *, backfill: str, memory: str, number: int, attempt: int) -> Chunk | None:
        """An attempt at a chunk; None if its file is missing or cannot be read."""
        try:
            rows = _read_rows(self._chunk_path(backfill, memory, number, attempt))
            about = json.loads(rows.schema.metadata[_ABOUT])
            asked = None if about["asked"] is None else tuple(tuple(key) for key in about["asked"])
            relation = Relation.from_description(about["relation"])
            by = tuple(about["by"])
            return Chunk(relation, rows.column("values"), *_read_bounds(about), asked, by)
        except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
            return None

    def discard(self, *, backfill: str, memory: str, number: int, attempt: int) -> None:
        """Remove an attempt at a chunk that the log has taken, or will never take."""
        self._chunk_path(backfill, memory, number, attempt).unlink(missing_ok=True)

    def store_sweep(self, sweeping: SweepRequest, *, backfill: str) -> None:
        """Write the sweep of a backfill. Raises: StagingError."""
        about = {
            "relation": sweeping.relation.describe(),
            "start": [sweeping.start.epoch, int(sweeping.start.commit_lsn), sweeping.start.seq],
            "low": sweeping.scope.low,
            "high": sweeping.scope.high,
        }
        path = self._path(f"sweep-{backfill}.json")
        with _writing(path) as descriptor, os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(about, file)

    def load_sweep(self, backfill: str) -> SweepRequest | None:
        """The sweep of a backfill; None if its file cannot be read."""
        try:
            about = json.loads(self._path(f"sweep-{backfill}.json").read_text(encoding="utf-8"))
        except OSError:
            return None
        epoch, commit_lsn, seq = about["start"]
        start = Position(epoch, Lsn(commit_lsn), seq)
        scope = Scope(*_read_bounds(about))
        return SweepRequest(Relation.from_description(about["relation"]), start, scope)

    @contextmanager
    def claim(self, backfill: str) -> Iterator[None]:
        """Own a backfill's files while a block runs, then remove them.

        This also removes the files of workers that have ended. Raises: StagingError.
        """
        with staging_errors("use the spool"):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = self._path(f"backfill-{backfill}.lock")
            descriptor = _lock(lock)
            # Another backfill that begins locks it for a moment, to see whether it is abandoned.
            until = time.monotonic() + _MOMENT_S
            while descriptor is None and time.monotonic() < until:
                time.sleep(_MOMENT_S / 100)
                descriptor = _lock(lock)
            if descriptor is None:
                raise StagingError(
                    f"another process runs backfill {backfill}",
                    fix="wait until it has ended, or stop it",
                    retry=Retry.LATER,
                )
            # Files of an earlier run of this backfill.
            self._remove(backfill, but=lock)
            for left in self._folder.glob("backfill-*.lock"):
                if (abandoned := _lock(left)) is not None:
                    self._remove(left.stem.removeprefix("backfill-"))
                    os.close(abandoned)
        try:
            yield
        finally:
            self._remove(backfill)
            os.close(descriptor)

    def is_claimed(self, backfill: str) -> bool:
        """Whether a worker of this host runs the backfill."""
        path = self._path(f"backfill-{backfill}.lock")
        if not path.exists():
            return False
        descriptor = _lock(path)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    def empty(self) -> None:
        """Remove all chunks and sweeps, even those of live workers: the workers read them again."""
        self._remove("")

    def _remove(self, backfill: str, but: Path | None = None) -> None:
        for kind in ("chunk", "sweep", *(["backfill"] if backfill else [])):
            for left in self._folder.glob(f"{kind}-{backfill}*"):
                if left != but:
                    left.unlink(missing_ok=True)

    def _chunk_path(self, backfill: str, memory: str, number: int, attempt: int) -> Path:
        return self._path(f"chunk-{backfill}-{memory}-{number}-{attempt}.arrow")

    def _path(self, name: str) -> Path:
        return self._folder / name


def _read_rows(path: Path) -> pa.Table:
    """The checked rows of a chunk, mapped from its file. Raises: OSError, ArrowException."""
    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        if not reader.schema.equals(_VALUES):
            raise pa.ArrowInvalid("not the rows of a chunk")
        rows = reader.read_all()
    for piece in rows.column("values").chunks:
        _require_texts(piece)
    return rows


def _require_texts(rows: pa.ListArray) -> None:
    """Check that all offsets lie inside the data, and that all texts are UTF-8.

    By itself, Arrow does not check what it reads. Raises: ArrowInvalid.
    """
    data = rows.values.buffers()[2]
    is_ascii = data is None or np.frombuffer(data, np.uint8).max(initial=0) < _FIRST_NOT_ASCII
    # To check UTF-8 takes seven times as long as the rest, and ASCII is UTF-8.
    (rows.view(_BYTES) if is_ascii else rows).validate(full=True)


def _read_bounds(about: dict[str, Any]) -> tuple[Key | None, Key | None]:
    low, high = (None if about[end] is None else tuple(about[end]) for end in ("low", "high"))
    return low, high


def _lock(path: Path) -> int | None:
    """Lock a file, and create it if it is missing; None if another process has it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have found the file abandoned and removed it since.
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


@contextmanager
def _writing(path: Path) -> Iterator[int]:
    """Open a new private file. It gets its name after the block; an error removes it."""
    arriving = path.with_suffix(".arriving")
    with staging_errors("write to the spool"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        arriving.unlink(missing_ok=True)
        descriptor = os.open(arriving, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            yield descriptor
            arriving.rename(path)
        except BaseException:
            arriving.unlink(missing_ok=True)
            raise
