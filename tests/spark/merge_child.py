"""A merge in a process of its own, to be killed: `merge_child.py LAKE_FOLDER SMALL_BYTES`."""

from __future__ import annotations

import sys
from pathlib import Path

from cdc_core.settings import SparkSettings
from spark_jobs.lake.lake import Lake
from spark_jobs.merge import merge
from spark_jobs.merge.rounds import merge_until
from spark_jobs.session.session import open_session
from tests.fix_spark import STATE_FOLDER, TEST_CONF
from tests.spark.small_lake import ALL

if __name__ == "__main__":
    folder, small_bytes = Path(sys.argv[1]), int(sys.argv[2])
    session = open_session(
        SparkSettings(delta_jars=str(STATE_FOLDER / "jars"), driver_memory="1g", conf=TEST_CONF)
    )
    merge.SMALL_TABLE_BYTES = small_bytes
    merge_until(session, Lake(folder / "lake", folder / "state"), round_rows=ALL)
