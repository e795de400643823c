"""The folder of one attempt to write a table: beside its files, and seen by no reader.

Each attempt has a folder of its own, so that none takes in what another has written.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Delta and Spark pass over names that begin with this sign.
_PREFIX = "_attempt-"


@contextmanager
def attempting(table: Path) -> Iterator[Path]:
    """Lend an empty folder inside a table's; what is left in it goes when the block ends."""
    folder = table / f"{_PREFIX}{uuid.uuid4()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clear_attempts(table: Path) -> None:
    """Remove what processes that died left; the caller holds the table locked."""
    for folder in table.glob(f"{_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
