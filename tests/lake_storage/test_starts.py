"""A store that ignores conditions is refused at the start of whatever writes to the lake."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from pyspark.sql import SparkSession

from cdc_core.capture.run import open_log
from cdc_core.errors import LakeError
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.settings import Settings, load_settings
from orchestration.maintenance.maintenance import run_maintenance
from orchestration.recovery.recover import Recovery, recover
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import follow
from tests.store_proxy import StoreProxy, Unconditional


def start_merge(settings: Settings) -> None:
    # The store is tried before the session is used.
    session, stop = cast("SparkSession", None), threading.Event()
    follow(session, Lake.of(settings), round_rows=1, linger_seconds=0, stop=stop)


def start_recovery(settings: Settings) -> None:
    list(recover(settings, cast("Recovery", None)))


# The proxy takes away headers that are signed.
@pytest.mark.usefixtures("_any_key")
@pytest.mark.parametrize(
    "start",
    [
        open_log,
        start_merge,
        start_recovery,
        lambda settings: run_maintenance(settings, tell=lambda _: None),
    ],
    ids=["capture", "merge", "recovery", "maintenance"],
)
def test_a_store_that_ignores_conditions_is_refused_before_anything_is_written(
    start: Callable[[Settings], object], object_lake: ObjectPlace, tmp_path: Path
) -> None:
    with StoreProxy(object_lake.store).run() as proxy:
        proxy.choose = lambda _: Unconditional()
        options = ", ".join(f'{key} = "{value}"' for key, value in proxy.store.options)
        file = tmp_path / "walgate.toml"
        file.write_text(
            '[source]\ndsn = "host=/nowhere dbname=shop"\n'
            f'[lake]\nroot = "{object_lake.uri}"\nstorage_options = {{ {options} }}\n'
        )
        with pytest.raises(LakeError, match="ignores the condition"):
            start(load_settings(file, {}))
    assert [*object_lake.list_matching()] == []
