"""The folder of one attempt to write a table. It lies in the table's folder, hidden from readers.

Each attempt has its own folder, so no attempt commits the files of another attempt.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Delta and Spark ignore names that begin with an underscore.
_PREFIX = "_attempt-"


@contextmanager
def attempting(table: Path) -> Iterator[Path]:
    """Make an empty folder in a table's folder; remove it with its content after the block."""
    folder = table / f"{_PREFIX}{uuid.uuid4()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_attempts(table: Path) -> None:
    """Remove the folders that dead processes left. The caller must hold the table's lock."""
    for folder in table.glob(f"{_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
