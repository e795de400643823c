"""A merge in a process of its own, to be killed: `merge_child.py LAKE_FOLDER LIMITS`.

LIMITS is JSON: the fields of the limits.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from cdc_core.settings import SparkSettings
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from spark_jobs.session.session import open_session
from spark_jobs.target.limits import MergeLimits
from tests.fix_spark import STATE_FOLDER, TEST_CONF, find_store_jars
from tests.lakes import locate_lake
from tests.spark.small_lake import ALL

if __name__ == "__main__":
    folder, limits = Path(sys.argv[1]), MergeLimits(**json.loads(sys.argv[2]))
    session = open_session(
        SparkSettings(delta_jars=str(STATE_FOLDER / "jars"), driver_memory="1g", conf=TEST_CONF),
        store=find_store_jars(),
    )
    lake = Lake(locate_lake(folder / "lake"))
    merge_until(session, lake, round_rows=ALL, limits=limits)
