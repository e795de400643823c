"""The history of the source that the log holds. Readers compare their server with it."""

from __future__ import annotations

from cdc_core.lake_storage.place import LakePlace
from cdc_core.source.primary import FindHistory, History
from cdc_core.staging.epochs import EpochReader


def find_log_history(root: LakePlace) -> FindHistory:
    """Return a function that reads the history of a lake's newest epoch at each call.

    Capture may follow a promotion at any moment. It then records the new timeline in the epoch.
    """
    epochs = EpochReader(root)

    def find_history() -> History | None:
        epoch = epochs.read()
        return None if epoch is None else History(epoch.system_id, epoch.timeline)

    return find_history
