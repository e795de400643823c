"""The history of the source that the log holds: what every connection that reads must prove."""

from __future__ import annotations

from pathlib import Path

from cdc_core.source.primary import FindHistory, History
from cdc_core.staging.epochs import read_newest_epoch


def find_log_history(root: Path) -> FindHistory:
    """A function that reads the history of the newest epoch of a lake, at each call.

    Capture may follow a promotion at any moment, and then records the new timeline in the epoch.
    """

    def find_history() -> History | None:
        epoch = read_newest_epoch(root)
        return None if epoch is None else History(epoch.system_id, epoch.timeline)

    return find_history
