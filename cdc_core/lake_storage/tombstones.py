"""The tombstones of a Delta table: the data files that it lost, and when, by the storage's clock.

To commit to a table, delta-rs lists the folder of its commits. So commits of the log and of
`ledger/cuts` go soon. The data files that they removed stay for the grace, because somebody may
still read them. This module keeps the time from which the grace counts.
"""

from __future__ import annotations

import json

from cdc_core.crash_points import reach
from cdc_core.lake_layout import TOMBSTONES
from cdc_core.lake_storage.delta_log import DeltaLog
from cdc_core.lake_storage.durability import remove_old_copies
from cdc_core.lake_storage.place import LakePlace


class Tombstones:
    """The tombstones of a table, in a file of its folder.

    A process may be paused in `write` while another process removes commits. When it wakes, it
    overwrites the newer tombstones of the other one. So this object remembers all that it found,
    and writes it again at the next `write`. Capture keeps one object for its whole session.
    """

    def __init__(self, table: LakePlace) -> None:
        """This reads nothing yet."""
        self.place = table / TOMBSTONES
        self._found = dict[str, int]()

    def find(self, log: DeltaLog, *, since_us: int) -> set[str]:
        """Find the names of the files that a table lost since a time; forget older tombstones.

        Unit: microseconds since 1970. Raises: OSError; ValueError if the file is damaged.
        """
        found = self._found | self._read() | log.read_removed()
        self._found = {name: lost_us for name, lost_us in found.items() if lost_us >= since_us}
        return set(self._found)

    def write(self) -> None:
        """Write what was found, durably. Then the commits that it comes from may go.

        Raises: OSError; ValueError if the file is damaged.
        """
        folder = self.place.parent
        if self._found != self._read():
            remove_old_copies(folder)
            reach("before_tombstones")
            self.place.replace_text(json.dumps(self._found))
        folder.sync()

    def _read(self) -> dict[str, int]:
        try:
            text = self.place.read_text()
        except FileNotFoundError:
            return {}
        try:
            return {str(name): int(lost_us) for name, lost_us in json.loads(text).items()}
        except (ValueError, AttributeError, TypeError) as error:
            raise ValueError(f"{self.place} is damaged: {error}") from None
