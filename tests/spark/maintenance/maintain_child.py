"""A maintenance in a process of its own, to be killed: `maintain_child.py LAKE_FOLDER [loop]`.

It maintains the lake, and then tends its log as capture does. In a loop, it maintains the lake
again and again, and leaves the log to another process.
"""

from __future__ import annotations

import sys
from pathlib import Path

from spark_jobs.lake.lake import Lake
from tests.lakes import locate_lake
from tests.spark.maintenance.maintained_lake import SHORT, Keeper

# With a grace of zero there are no tombstones.
GRACE_S = 3600.0

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    keeper = Keeper(Lake(locate_lake(folder / "lake")), folder / "spool")
    while "loop" in sys.argv:
        keeper.maintain(SHORT)
    keeper.maintain()
    keeper.tend(grace_s=GRACE_S)
    keeper.tend()
