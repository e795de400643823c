"""A disk that refuses bytes, and tells that to one fsync, as Linux does."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest


class RefusingDisk:
    """Refuses files of a kind to their first fsync, and answers "done" to the next ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Take the place of the system's fsync."""
        self._fsync = os.fsync
        self._folder, self._kind, self._times = Path(), "", 0
        self._lost: set[int] = set()
        monkeypatch.setattr(os, "fsync", self._sync)

    def refuse(self, folder: Path, kind: str, *, times: int = 1) -> None:
        """Refuse the next files in a folder whose names hold `kind`."""
        self._folder, self._kind, self._times = folder, kind, times

    def find_lost(self, folder: Path) -> list[str]:
        """The files in a folder whose bytes the disk never got, once all were refused."""
        assert self._times == 0
        return sorted(p.name for p in folder.rglob("*") if p.stat().st_ino in self._lost)

    def _sync(self, descriptor: int) -> None:
        file = Path(f"/proc/self/fd/{descriptor}").readlink()
        number = os.fstat(descriptor).st_ino
        is_of_kind = self._kind in file.name and self._folder in file.parents
        if self._times and is_of_kind and number not in self._lost:
            self._times -= 1
            self._lost.add(number)
            os.dup(descriptor)  # Else another file may get its number.
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._fsync(descriptor)
