"""A maintenance in a process of its own, to be killed: `maintain_child.py LAKE_FOLDER`.

It maintains the lake, and then tends its log as capture does.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_core.lake_storage.place import LakePlace
from spark_jobs.lake.lake import Lake
from tests.spark.maintenance.maintained_lake import Keeper

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    keeper = Keeper(Lake(LakePlace.of(folder / "lake")), folder / "spool")
    keeper.maintain()
    keeper.tend()
