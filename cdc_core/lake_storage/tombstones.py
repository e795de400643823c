"""The tombstones of a Delta table: the data files that it lost, and when, by the storage's clock.

Each new commit of a table lists the folder of its commits. So the commits of the log go soon. The
data files that they removed stay for longer, because somebody may still read them. This file says
for how long.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from cdc_core.crash_points import reach
from cdc_core.lake_layout import name_copy
from cdc_core.lake_storage.delta_log import DeltaLog
from cdc_core.lake_storage.durability import remove_old_copies
from cdc_core.lake_storage.place import LakePlace


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The file that has a table's tombstones. One process writes it."""

    place: LakePlace

    def record(self, log: DeltaLog, *, since_us: int) -> set[str]:
        """Add what the commits of a log removed; return the names of the files lost since a time.

        Older tombstones are forgotten. The file is durable afterwards, so the commits may go.
        Unit: microseconds since 1970. Raises: OSError; ValueError if the file is damaged.
        """
        known = self._read()
        found = {**known, **log.read_removed()}
        kept = {name: lost_us for name, lost_us in found.items() if lost_us >= since_us}
        if kept != known:
            self._write(kept)
        return set(kept)

    def _read(self) -> dict[str, int]:
        try:
            text = self.place.read_text()
        except FileNotFoundError:
            return {}
        try:
            return {str(name): int(lost_us) for name, lost_us in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{self.place} is damaged: {error}") from None

    def _write(self, tombstones: Mapping[str, int]) -> None:
        folder = self.place.parent
        remove_old_copies(folder)
        copy = folder / name_copy(self.place.name, uuid.uuid4())
        try:
            copy.write_text(json.dumps(tombstones))
            copy.sync()
            reach("before_tombstones")
            copy.move_to(self.place)
        except BaseException:
            copy.remove()
            raise
        folder.sync()
