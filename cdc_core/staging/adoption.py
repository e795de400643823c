"""The adoption: which log the captures of this configuration fill, remembered beside its settings.

A folder that is empty where the log was, as a volume that is not mounted leaves it, looks like that
of a first run: the slot's changes would go into it, and be missing from the log. Nothing else
depends on the mark, which may be deleted as all state of this host: an empty folder then begins a
log.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc_core.durability import sync_file
from cdc_core.errors import RECOVER, Retry, StagingError

_MARK = "adopted.json"

_logger = logging.getLogger("walgate.capture")


@dataclass(frozen=True, slots=True)
class Adoption:
    """The lake's root, the slot that is consumed into its log, and the server of both."""

    root: str
    slot: str
    system_id: str


def require_log(state_folder: Path, *, root: Path, slot: str) -> None:
    """The log is where it was, or there was none. Writes nothing. Raises: StagingError."""
    adopted = _read(state_folder)
    if adopted is None or (adopted.root, adopted.slot) != (str(root), slot):
        return
    epochs = root / "staging" / "epochs"
    if any(epochs.glob("*.parquet")):
        return
    found = "no such folder"
    if root.is_dir():
        found = "a folder without it" if any(root.iterdir()) else "an empty folder"
    raise StagingError(
        f"the log is gone from {root}: slot {slot} of server {adopted.system_id} was consumed into"
        f" it, expected {epochs}, found {found}",
        fix=f"mount or restore the lake and run again, or {RECOVER}",
        retry=Retry.AFTER_FIX,
    )


def remember_log(state_folder: Path, adoption: Adoption) -> None:
    """Write the mark; if the folder cannot be written, only log it."""
    if _read(state_folder) == adoption:
        return
    mark = state_folder / _MARK
    written = mark.with_suffix(".new")
    try:
        state_folder.mkdir(parents=True, exist_ok=True)
        with written.open("w", encoding="utf-8") as file:
            json.dump(asdict(adoption), file)
            file.flush()
            os.fsync(file.fileno())
        written.replace(mark)
        sync_file(state_folder)
    except OSError as exc:
        fields = {"file": str(mark), "reason": exc.strerror}
        _logger.warning("cannot remember where the log is", extra={"fields": fields})


def _read(state_folder: Path) -> Adoption | None:
    """What was remembered; None where nothing is, or nothing legible."""
    try:
        return Adoption(**json.loads((state_folder / _MARK).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
