"""Places in the lake: files and folders, and everything that Walgate itself does to them.

delta-rs and Spark read and write the lake by themselves; they get the text of a place, `uri`. All
other access goes through this package. `LakePlace` says what each place does. `LocalPlace` does it
in a folder of a file system, and `ObjectPlace` in an object store.

- A file is written once, under its final name. In an object store it appears whole or not at all.
  In a folder its parts appear one after the other, so a commit names it only afterwards.
- Where `is_durable_at_once` is true, what was written is durable, and `sync` does nothing.
- A folder of an object store is a prefix of names. It exists as long as a name begins with it.
- Times are by the storage's own clock. That of an object store counts whole seconds.
"""

from __future__ import annotations

import posixpath
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, ClassVar, Protocol, Self

from cdc_core.lake_layout import name_copy


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a folder: its name, its size in bytes, and when it was written last.

    The time is in microseconds since 1970, by the storage's clock.
    """

    name: str
    size: int
    modified_us: int


class NewFile(Protocol):
    """A new file that is written in pieces."""

    @property
    def stream(self) -> IO[bytes]:
        """What takes the bytes."""

    def finish(self) -> None:
        """Close the file and make it durable. Raises: OSError."""

    def discard(self) -> None:
        """Give up the unfinished file, even on storage that takes no more bytes."""


@dataclass(frozen=True, slots=True, order=True)
class LakePlace(ABC):
    """A file or a folder of the lake, which need not exist. `uri` is what delta-rs and Spark take.

    All methods that read or write raise OSError; FileNotFoundError if nothing is there.
    """

    uri: str

    # Whether what was written is on the disk, so that no call has to force it there.
    is_durable_at_once: ClassVar[bool]
    # Whether one request lists a thousand files, and each look at a file is a request, too.
    lists_by_request: ClassVar[bool]

    def __str__(self) -> str:
        """The text for messages."""
        return self.uri

    def __truediv__(self, name: str) -> Self:
        """A place below this folder, by its name relative to the folder."""
        return replace(self, uri=posixpath.join(self.uri, name))

    @property
    def name(self) -> str:
        """The last part of the place's name."""
        return posixpath.basename(self.uri)

    @property
    def parent(self) -> Self:
        """The folder of this place."""
        return replace(self, uri=posixpath.dirname(self.uri))

    @abstractmethod
    def find_options(self) -> dict[str, str] | None:
        """Find what delta-rs needs to open `uri`, such as credentials. None on a file system."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether a file or a folder is there."""

    @abstractmethod
    def is_folder(self) -> bool:
        """Whether a folder is there."""

    @abstractmethod
    def list_matching(self, pattern: str = "*") -> Iterator[Self]:
        """The files and folders in this folder whose names match a pattern of the shell, unordered.

        Nothing if this folder does not exist.
        """

    @abstractmethod
    def list_files(self) -> Iterator[ListedFile]:
        """The files in this folder with their sizes and times, unordered; no folders.

        Nothing if this folder does not exist. A file that goes during the listing may be missing.
        """

    @abstractmethod
    def read_bytes(self) -> bytes:
        """The content of a file."""

    def read_text(self) -> str:
        """The text of a file, which is UTF-8."""
        return self.read_bytes().decode("utf-8")

    @abstractmethod
    def read_size(self) -> int:
        """The size of a file in bytes."""

    @abstractmethod
    def read_modified_us(self) -> int:
        """When a file was written last, in microseconds since 1970, by the storage's clock."""

    @abstractmethod
    def read_change(self) -> tuple[int, int] | None:
        """Identify a folder and its last change, to notice another folder in its place.

        A new file in it changes the result, too, unless it comes within one tick of the storage's
        clock. None if no folder is there.
        """

    def read_clock_us(self) -> int:
        """The time of the storage's clock, in microseconds since 1970; the folder must exist."""
        probe = self / name_copy("clock", uuid.uuid4())
        try:
            probe.write_text("")
            return probe.read_modified_us()
        finally:
            probe.remove()

    @abstractmethod
    def create(self) -> NewFile:
        """Create a private file, which is written in pieces. No other file may have the name."""

    @abstractmethod
    def write_text(self, text: str) -> None:
        """Write a file as UTF-8. It is durable after `sync` of the file and of its folder."""

    @abstractmethod
    def replace_text(self, text: str) -> None:
        """Write a file as UTF-8, durably, at once. Readers find the old text or the new one.

        The name of a new file is durable after `sync` of its folder.
        """

    @abstractmethod
    def receive(self, local: Path) -> None:
        """Move a file of this host to this place, even from another file system.

        If the file was copied, the copy is durable and private.
        """

    @abstractmethod
    def move_to(self, target: Self) -> None:
        """Move a file within the lake. It takes the place of a file that is at `target`."""

    @abstractmethod
    def remove(self) -> None:
        """Remove a file, if it is there."""

    @abstractmethod
    def remove_files(
        self, names: Sequence[str], *, after_each: Callable[[], None] = lambda: None
    ) -> None:
        """Remove those files of this folder that are there, by their names.

        Calls `after_each` once for each name, when the file of that name is gone.
        """

    @abstractmethod
    def make_folder(self) -> None:
        """Make a folder and those above it, if they are missing."""

    @abstractmethod
    def remove_folder(self) -> None:
        """Remove a folder with its content, as far as that is possible. Raises nothing."""

    @abstractmethod
    def sync(self) -> None:
        """Force a file, or the names in a folder, to the disk."""

    @abstractmethod
    def rewrite(self) -> None:
        """Write a file's bytes durably to a new file, which then takes the old file's name.

        The new file has the old file's time: the time of a commit says which files are older. The
        name is durable after `sync` of the folder. If an error is raised, no copy is left.
        """
