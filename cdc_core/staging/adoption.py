"""The adoption: which log the captures of this configuration fill, stored beside its settings.

If the lake's volume is not mounted, its folder is empty, as before a first run. Capture would write
the slot's changes into that folder, and the log would lack them. The adoption shows that the log
existed. Nothing else depends on its file, which may be deleted like all state of this host. After
that, an empty folder begins a new log.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc_core.errors import RECOVER, Retry, StagingError
from cdc_core.lake_layout import EPOCHS
from cdc_core.lake_storage.local_files import sync_path
from cdc_core.lake_storage.place import LakePlace

_MARK = "adopted.json"

_logger = logging.getLogger("walgate.capture")


@dataclass(frozen=True, slots=True)
class Adoption:
    """The lake's root, the slot whose changes go into its log, and the server's identifier."""

    root: str
    slot: str
    system_id: str


def require_log(state_folder: Path, *, root: LakePlace, slot: str) -> None:
    """Check that the log adopted for this root and slot, if any, still exists. Writes nothing.

    Raises: StagingError.
    """
    adopted = _read(state_folder)
    if adopted is None or (adopted.root, adopted.slot) != (root.uri, slot):
        return
    epochs = root / EPOCHS
    if any(epochs.list_matching("*.parquet")):
        return
    found = "no such folder"
    if root.is_folder():
        found = "a folder without it" if any(root.list_matching()) else "an empty folder"
    raise StagingError(
        f"the log is gone from {root}: capture filled it from slot {slot} of server"
        f" {adopted.system_id}, expected {epochs}, found {found}",
        fix=f"mount or restore the lake and run again, or {RECOVER}",
        retry=Retry.AFTER_FIX,
    )


def remember_log(state_folder: Path, adoption: Adoption) -> None:
    """Write the adoption to its file. If that fails, only log a warning."""
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
        sync_path(state_folder)
    except OSError as exc:
        fields = {"file": str(mark), "reason": exc.strerror}
        _logger.warning("cannot store the location of the log", extra={"fields": fields})


def _read(state_folder: Path) -> Adoption | None:
    """The stored adoption; None if the file is missing or cannot be read."""
    try:
        return Adoption(**json.loads((state_folder / _MARK).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
