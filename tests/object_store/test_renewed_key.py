"""A process whose key of the store expires while it writes, and is renewed in a file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cdc_core.lake_storage.delta_tables import open_delta
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.vocabulary import Lsn
from spark_jobs.delta.committer import FileChange, commit_files
from spark_jobs.lake.lake import Bound, Epoch
from tests.store_proxy import Answer, Fault, Request, StoreProxy

EXPIRED = Answer(403, "ExpiredToken")


@pytest.fixture
def proxy(object_lake: ObjectPlace) -> Iterator[StoreProxy]:
    with StoreProxy(object_lake.store).run() as running:
        yield running


def keep_key(file: Path, key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id={key}\naws_secret_access_key=secret\n")


@pytest.mark.usefixtures("_any_key")
def test_a_commit_uses_the_key_of_now_and_not_that_of_the_opening(
    object_lake: ObjectPlace, proxy: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    keep_key(file, "FIRST")
    place = replace(object_lake, store=proxy.store) / "tables/public/t"
    write_deltalake(place.uri, pa.table({"k": [1]}), storage_options=place.find_options())
    table = open_delta(place)
    refused = list[Request]()

    def refuse_first(request: Request) -> Fault:
        if "Credential=FIRST/" not in request.headers["authorization"]:
            return None
        refused.append(request)
        return EXPIRED

    proxy.choose = refuse_first
    keep_key(file, "SECOND")
    epoch, reached = Epoch(1, "1", Lsn(1)), Bound(1, Lsn(2))
    commit_files(place, table, FileChange(), epoch=epoch, reached=reached, lossy=None)
    (place / "an_object").write_text("written by obstore")

    assert open_delta(place).version() == 1
    assert refused == []
