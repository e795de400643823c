"""Places in the lake: files and folders, and everything that Walgate itself does to them.

delta-rs and Spark read and write the lake by themselves; they get the text of a place, `uri`. All
other access goes through this package. It keeps the lake in a folder of a file system.

An object store needs another implementation of `LakePlace`, `NewFile`, `arrow_files` and `locks`,
which gives the same:

- A file that `open_output`, `create` or `receive` writes appears whole, or not at all.
- `create` refuses a name that is taken.
- `list_matching` and `list_files` give the names with a prefix. `read_modified_us` and
  `list_files` give the store's own time.
- Folders need not be made. `remove_folder` removes everything with a prefix.
- What is written is durable, so `sync` and `rewrite` do nothing.
- `read_change` gives what tells two states of a folder apart.
- A lock is a lease that its holder renews.
"""

from __future__ import annotations

import errno
import os
import posixpath
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cdc_core.lake_layout import name_copy
from cdc_core.lake_storage.local_files import NewFile, sync_path


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file in a folder: its name, its size in bytes, and when it was written last.

    The time is in microseconds since 1970, by the storage's clock.
    """

    name: str
    size: int
    modified_us: int


@dataclass(frozen=True, slots=True, order=True)
class LakePlace:
    """A file or a folder of the lake, which need not exist. `uri` is what delta-rs and Spark take.

    All methods that read or write raise OSError; FileNotFoundError if nothing is there.
    """

    uri: str

    @classmethod
    def of(cls, path: Path) -> LakePlace:
        """The place of a path of this host."""
        return cls(str(path))

    def __str__(self) -> str:
        """The text for messages."""
        return self.uri

    def __truediv__(self, name: str) -> LakePlace:
        """A place below this folder, by its name relative to the folder."""
        return LakePlace(posixpath.join(self.uri, name))

    @property
    def name(self) -> str:
        """The last part of the place's name."""
        return posixpath.basename(self.uri)

    @property
    def parent(self) -> LakePlace:
        """The folder of this place."""
        return LakePlace(posixpath.dirname(self.uri))

    def exists(self) -> bool:
        """Whether a file or a folder is there."""
        return self._path.exists()

    def is_folder(self) -> bool:
        """Whether a folder is there."""
        return self._path.is_dir()

    def list_matching(self, pattern: str = "*") -> Iterator[LakePlace]:
        """The files and folders in this folder whose names match a pattern of the shell, unordered.

        Nothing if this folder does not exist.
        """
        return (self / path.name for path in self._path.glob(pattern))

    def list_files(self) -> Iterator[ListedFile]:
        """The files in this folder with their sizes and times, unordered; no folders.

        Nothing if this folder does not exist. A file that goes during the listing may be missing.
        """
        try:
            entries = os.scandir(self.uri)
        except FileNotFoundError:
            return
        with entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield ListedFile(entry.name, status.st_size, status.st_mtime_ns // 1000)

    def read_text(self) -> str:
        """The text of a file, which is UTF-8."""
        return self._path.read_text(encoding="utf-8")

    def read_size(self) -> int:
        """The size of a file in bytes."""
        return self._path.stat().st_size

    def read_modified_us(self) -> int:
        """When a file was written last, in microseconds since 1970, by the storage's clock."""
        return self._path.stat().st_mtime_ns // 1000

    def read_change(self) -> tuple[int, int] | None:
        """Identify a folder and its last change, to notice another folder in its place.

        A new file in it changes the result, too, unless it comes within one tick of the file
        system's clock. None if no folder is there.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return None
        # A program that restores files can set the modification time, but not the change time.
        return found.st_ino, found.st_ctime_ns

    def read_clock_us(self) -> int:
        """The time of the storage's clock, in microseconds since 1970; the folder must exist."""
        probe = self / name_copy("clock", uuid.uuid4())
        try:
            probe.write_text("")
            return probe.read_modified_us()
        finally:
            probe.remove()

    def create(self) -> NewFile:
        """Create a private file, which is written in pieces. Raises: FileExistsError."""
        return NewFile(self._path)

    def write_text(self, text: str) -> None:
        """Write a file as UTF-8. It is durable after `sync` of the file and of its folder."""
        self._path.write_text(text, encoding="utf-8")

    def receive(self, local: Path) -> None:
        """Move a file of this host to this place, even from another file system.

        If the file was copied, the copy is durable and private.
        """
        try:
            local.rename(self._path)
        except OSError as exc:
            if exc.errno != errno.EXDEV:
                raise
            _copy_privately(local, self._path)
            local.unlink()

    def move_to(self, target: LakePlace) -> None:
        """Move a file within the lake. It takes the place of a file that is at `target`."""
        self._path.replace(target.uri)

    def remove(self) -> None:
        """Remove a file, if it is there."""
        self._path.unlink(missing_ok=True)

    def make_folder(self) -> None:
        """Make a folder and those above it, if they are missing."""
        self._path.mkdir(parents=True, exist_ok=True)

    def make_new_folder(self) -> None:
        """Make a folder in a folder that exists. Raises: FileExistsError."""
        self._path.mkdir()

    def remove_folder(self) -> None:
        """Remove a folder with its content, as far as that is possible. Raises nothing."""
        shutil.rmtree(self.uri, ignore_errors=True)

    def sync(self) -> None:
        """Force a file, or the names in a folder, to the disk."""
        sync_path(self._path)

    def rewrite(self) -> None:
        """Write a file's bytes durably to a new file, which then takes the old file's name.

        The new file has the old file's time: the time of a commit says which files are older. The
        name is durable after `sync` of the folder. If an error is raised, no copy is left.
        """
        file = self._path
        copied = file.with_name(name_copy(file.name, uuid.uuid4()))
        try:
            with copied.open("xb") as copy:
                shutil.copymode(file, copied)
                _copy_content(file, copy)
            shutil.copystat(file, copied)
            copied.rename(file)
        except BaseException:
            copied.unlink(missing_ok=True)
            raise

    @property
    def _path(self) -> Path:
        return Path(self.uri)


def _copy_content(source: Path, copy: BinaryIO) -> None:
    """Copy a file's bytes into an open file, and force that to the disk."""
    with source.open("rb") as original:
        shutil.copyfileobj(original, copy)
    copy.flush()
    os.fsync(copy.fileno())


def _copy_privately(source: Path, target: Path) -> None:
    """Copy a file durably to a temporary name, then rename the copy to the target.

    Raises: OSError; then no copy is left.
    """
    arriving = target.with_suffix(".arriving")
    arriving.unlink(missing_ok=True)
    try:
        descriptor = os.open(arriving, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as copy:
            _copy_content(source, copy)
        arriving.rename(target)
    except OSError:
        arriving.unlink(missing_ok=True)
        raise
