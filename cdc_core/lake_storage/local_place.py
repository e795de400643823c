"""Places in a lake that is a folder of a file system."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Self

from typing_extensions import override

from cdc_core.lake_layout import name_copy, name_local_checksum
from cdc_core.lake_storage.local_files import NewLocalFile, sync_path
from cdc_core.lake_storage.place import LakePlace, ListedFile


@dataclass(frozen=True, slots=True, order=True)
class LocalPlace(LakePlace):
    """A path of a file system."""

    is_durable_at_once: ClassVar[bool] = False
    lists_by_request: ClassVar[bool] = False

    @classmethod
    def of(cls, path: Path) -> Self:
        """The place of a path of this host."""
        return cls(str(path))

    @property
    def path(self) -> Path:
        """The path of this host."""
        return Path(self.uri)

    @override
    def find_options(self) -> None:
        return None

    @override
    def exists(self) -> bool:
        return self.path.exists()

    @override
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @override
    def list_matching(self, pattern: str = "*") -> Iterator[Self]:
        return (self / found.name for found in self.path.glob(pattern))

    @override
    def list_files(self) -> Iterator[ListedFile]:
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

    @override
    def read_bytes(self) -> bytes:
        return self.path.read_bytes()

    @override
    def read_size(self) -> int:
        return self.path.stat().st_size

    @override
    def read_modified_us(self) -> int:
        return self.path.stat().st_mtime_ns // 1000

    @override
    def read_change(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        # A program that restores files can set the modification time, but not the change time.
        return found.st_ino, found.st_ctime_ns

    @override
    def create(self) -> NewLocalFile:
        return NewLocalFile(self.path)

    @override
    def write_text(self, text: str) -> None:
        self.path.write_text(text, encoding="utf-8")

    @override
    def replace_text(self, text: str) -> None:
        copied = self.parent / name_copy(self.name, uuid.uuid4())
        try:
            copied.write_text(text)
            copied.sync()
            copied.move_to(self)
        except BaseException:
            copied.remove()
            raise

    @override
    def receive(self, local: Path) -> None:
        try:
            local.rename(self.path)
        except OSError as exc:
            if exc.errno != errno.EXDEV:
                raise
            _copy_privately(local, self.path)
            local.unlink()

    @override
    def move_to(self, target: Self) -> None:
        self.path.replace(target.uri)

    @override
    def remove(self) -> None:
        self.path.unlink(missing_ok=True)

    @override
    def remove_files(
        self, names: Sequence[str], *, after_each: Callable[[], None] = lambda: None
    ) -> None:
        for name in names:
            (self / name_local_checksum(name)).remove()
            (self / name).remove()
            after_each()

    @override
    def make_folder(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)

    @override
    def remove_folder(self) -> None:
        shutil.rmtree(self.uri, ignore_errors=True)

    @override
    def sync(self) -> None:
        sync_path(self.path)

    @override
    def rewrite(self) -> None:
        file = self.path
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
