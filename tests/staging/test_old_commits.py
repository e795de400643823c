"""Commits of the log that are older than delta-rs would keep them."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

from cdc_core.lake_layout import DELTA_LOG
from cdc_core.settings import SourceSettings
from cdc_core.staging.log import Log
from cdc_core.staging.subscriptions import Subscription
from tests.capture.test_interfaces import EPOCH, land
from tests.lakes import locate_lake, path_of

DAY_S = 86_400


def test_a_checkpoint_removes_no_commit(tmp_path: Path) -> None:
    """Capture begins again after months. The upkeep must still see what the old commits removed."""
    log = Log(
        locate_lake(tmp_path / "lake"),
        spool=tmp_path / "spool",
        subscription=Subscription.of(SourceSettings(dsn="dbname=none")),
    )
    log.begin_epoch(EPOCH)
    log.read_staged(EPOCH)
    commits = path_of(log.changes_folder) / DELTA_LOG
    long_ago = time.time() - 100 * DAY_S
    for at in count(200, 100):
        land(log, at)
        if list(commits.glob("*.checkpoint.parquet")):
            break
        for file in commits.glob("*.json"):
            os.utime(file, (long_ago, long_ago))
    assert (commits / f"{0:020}.json").exists()
