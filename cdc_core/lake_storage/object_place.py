"""Places in a lake that is in an object store.

The store keeps whole objects under names. A folder is a prefix of names, so it needs no making. An
object that was written is durable, and readers find it whole or not at all.
"""

from __future__ import annotations

import fnmatch
import io
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Literal, Self

import obstore
from typing_extensions import override

from cdc_core.lake_storage.object_store import (
    SCHEME,
    ObjectStore,
    Patience,
    StoreFailed,
    raising_os_errors,
)
from cdc_core.lake_storage.place import LakePlace, ListedFile

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer
    from obstore import ListResult, ObjectMeta, UpdateVersion

# A new file up to this size waits in memory until it is whole, and a larger one on a disk.
_MAX_IN_MEMORY = 32 << 20
_CLOCK = ".clock"
# A holder must renew its lock long before others take it over.
_OF_LOCKS = Patience(request_s=4, all_tries_s=6)


class Refused(Exception):
    """The store refused a conditional write: the object is not as the writer has seen it."""


@dataclass(frozen=True, slots=True)
class TaggedText:
    """The text of an object, the tag of its state, and when it was written."""

    text: str
    tag: str
    modified_us: int


@dataclass(frozen=True, slots=True, order=True)
class ObjectPlace(LakePlace):
    """An object of a store, or a prefix of names."""

    store: ObjectStore

    is_durable_at_once: ClassVar[bool] = True
    lists_by_request: ClassVar[bool] = True

    @override
    def find_options(self) -> dict[str, str]:
        return self.store.find_options()

    @override
    def exists(self) -> bool:
        with suppress(FileNotFoundError), raising_os_errors(self.uri):
            obstore.head(self.store.connect(), self._key)
            return True
        return self.is_folder()

    @override
    def is_folder(self) -> bool:
        with raising_os_errors(self.uri):
            listed = obstore.list(self.store.connect(), self._key, chunk_size=1)
            return any(batch for batch in listed)

    @override
    def list_matching(self, pattern: str = "*") -> Iterator[Self]:
        listed = self._list()
        names = [*listed["common_prefixes"], *(found["path"] for found in listed["objects"])]
        for name in (name.rpartition("/")[2] for name in names):
            if fnmatch.fnmatchcase(name, pattern):
                yield self / name

    @override
    def list_files(self) -> Iterator[ListedFile]:
        for found in self._list()["objects"]:
            name = found["path"].rpartition("/")[2]
            yield ListedFile(name, found["size"], _to_us(found))

    @override
    def read_bytes(self) -> bytes:
        with raising_os_errors(self.uri):
            return bytes(obstore.get(self.store.connect(), self._key).bytes())

    def read_range(self, start: int, length: int) -> bytes:
        """Some bytes of a file."""
        with raising_os_errors(self.uri):
            client = self.store.connect()
            return bytes(obstore.get_range(client, self._key, start=start, length=length))

    def read_tagged(self) -> TaggedText | None:
        """The text of an object, with the tag of its state; None if it does not exist."""
        with suppress(FileNotFoundError), raising_os_errors(self.uri):
            found = obstore.get(self.store.connect(patience=_OF_LOCKS), self._key)
            text = bytes(found.bytes()).decode("utf-8")
            return TaggedText(text, self._require_tag(found.meta["e_tag"]), _to_us(found.meta))
        return None

    def write_text_if(self, text: str, tag: str | None) -> str:
        """Write an object if it still has a tag; without a tag, only if it does not exist.

        Returns the new tag. Raises: Refused; OSError.
        """
        mode: Literal["create"] | UpdateVersion = "create" if tag is None else {"e_tag": tag}
        try:
            with raising_os_errors(self.uri):
                content = text.encode("utf-8")
                client = self.store.connect(patience=_OF_LOCKS)
                written = obstore.put(client, self._key, content, mode=mode)
        except FileExistsError:
            raise Refused(self.uri) from None
        return self._require_tag(written["e_tag"])

    def _require_tag(self, tag: str | None) -> str:
        if not tag:
            raise StoreFailed("it gives an object no tag", self.uri)
        return tag

    @override
    def read_size(self) -> int:
        return int(self._head()["size"])

    @override
    def read_modified_us(self) -> int:
        return _to_us(self._head())

    @override
    def read_change(self) -> tuple[int, int] | None:
        files = list(self.list_files())
        if not files:
            return None
        return len(files), max(file.modified_us for file in files)

    @override
    def read_clock_us(self) -> int:
        # All processes use the same name, so those that are killed leave one object in all.
        probe = self / _CLOCK
        while True:
            probe.write_text("")
            # Another process may have removed it.
            with suppress(FileNotFoundError):
                time_us = probe.read_modified_us()
                probe.remove()
                return time_us

    @override
    def create(self) -> NewObject:
        return NewObject(self)

    def write_bytes(self, content: bytes | IO[bytes] | Path) -> None:
        """Write a file. A large one goes in parts, which the store joins at the end."""
        with raising_os_errors(self.uri):
            obstore.put(self.store.connect(), self._key, content)

    @override
    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode("utf-8"))

    @override
    def replace_text(self, text: str) -> None:
        self.write_text(text)

    @override
    def receive(self, local: Path) -> None:
        self.write_bytes(local)
        local.unlink()

    @override
    def move_to(self, target: Self) -> None:
        with raising_os_errors(self.uri):
            obstore.rename(self.store.connect(), self._key, target._key)

    @override
    def remove(self) -> None:
        with suppress(FileNotFoundError), raising_os_errors(self.uri):
            obstore.delete(self.store.connect(), self._key)

    @override
    def remove_files(
        self, names: Sequence[str], *, after_each: Callable[[], None] = lambda: None
    ) -> None:
        # One request removes a thousand objects.
        with raising_os_errors(self.uri):
            obstore.delete(self.store.connect(), [f"{self._key}/{name}" for name in names])
        for _ in names:
            after_each()

    @override
    def make_folder(self) -> None:
        pass

    @override
    def remove_folder(self) -> None:
        with suppress(OSError), raising_os_errors(self.uri):
            client = self.store.connect()
            for batch in obstore.list(client, self._key):
                obstore.delete(client, [found["path"] for found in batch])

    @override
    def sync(self) -> None:
        pass

    @override
    def rewrite(self) -> None:
        pass

    @property
    def _key(self) -> str:
        return self.uri.removeprefix(f"{SCHEME}{self.store.bucket}").lstrip("/")

    def _list(self) -> ListResult[Sequence[ObjectMeta]]:
        with raising_os_errors(self.uri):
            return obstore.list_with_delimiter(self.store.connect(), self._key)

    def _head(self) -> ObjectMeta:
        with raising_os_errors(self.uri):
            return obstore.head(self.store.connect(), self._key)


class NewObject:
    """A new object that is written in pieces. The store gets it when it is finished."""

    def __init__(self, place: ObjectPlace) -> None:
        """Begin with no bytes."""
        self._place = place
        self.stream: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - `finish` closes it.
            max_size=_MAX_IN_MEMORY
        )

    def finish(self) -> None:
        """Write the object to the store. Raises: OSError."""
        self.stream.seek(0)
        self._place.write_bytes(self.stream)
        self.stream.close()

    def discard(self) -> None:
        """Forget the bytes."""
        with suppress(OSError):
            self.stream.close()


class ObjectReader(io.RawIOBase):
    """Reads any part of an object. Each read is one request to the store."""

    def __init__(self, place: ObjectPlace) -> None:
        """Ask the store for the size. Raises: OSError."""
        self._place, self._size, self._at = place, place.read_size(), 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._at

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = base + offset
        return self._at

    @override
    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        length = min(len(view), self._size - self._at)
        if length <= 0:
            return 0
        view[:length] = self._place.read_range(self._at, length)
        self._at += length
        return length


class ObjectWriter(io.RawIOBase):
    """Takes the bytes of a new object. To close this does not finish the object."""

    def __init__(self, new: NewObject) -> None:
        """Write to an object that somebody else finishes or discards."""
        self._new = new

    @override
    def writable(self) -> bool:
        return True

    @override
    def write(self, content: ReadableBuffer) -> int:
        return self._new.stream.write(content)

    @override
    def tell(self) -> int:
        return self._new.stream.tell()


def _to_us(found: ObjectMeta) -> int:
    return int(found["last_modified"].timestamp() * 1_000_000)
