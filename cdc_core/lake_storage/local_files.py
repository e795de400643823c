"""Files on a disk of this host that must get durable: of the lake, the spool, or the state."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def sync_path(path: Path) -> None:
    """Force a file, or the names in a folder, to the disk. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class NewLocalFile:
    """A new private file that is written in pieces. `stream` takes its bytes."""

    def __init__(self, path: Path) -> None:
        """Create the file, readable by its owner alone. Raises: OSError, also if it exists."""
        self._path = path
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self.stream = os.fdopen(descriptor, "wb")

    def finish(self) -> None:
        """Close the file and make it durable. Raises: OSError."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def discard(self) -> None:
        """Remove the unfinished file, even on storage that takes no more bytes."""
        self._path.unlink(missing_ok=True)
        with suppress(OSError):
            self.stream.close()  # This writes the buffer. It closes the file even if that fails.
