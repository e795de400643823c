"""Where the lakes of the tests are: in folders of this host, or in an object store.

`pytest --lakes-in-store` runs a store, and puts the lakes there. A test that looks at files of its
lake is skipped then.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import obstore
import pytest

from cdc_core.lake_layout import TOMBSTONES
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import ObjectStore
from cdc_core.lake_storage.place import LakePlace

BUCKET = "lakes"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
# The endpoint of the store with the lakes of this run. Child processes read it, too.
STORE_VARIABLE = "WALGATE_TEST_STORE"
# The endpoint for this process alone, if it is another one than that of child processes.
_own_endpoint: list[str] = []

# Marks a test that writes files of its lake by itself, or needs a disk that fails.
on_disk = pytest.mark.skipif(
    f"'{STORE_VARIABLE}' in os.environ", reason="it needs its lake on a disk of this host"
)


def describe_store(endpoint: str) -> ObjectStore:
    """The store that a server at an endpoint is."""
    options = {"aws_allow_http": "true", "aws_endpoint": endpoint, "aws_region": "us-east-1"}
    return ObjectStore(BUCKET, tuple(options.items()))


def spare_this_process(endpoint: str) -> None:
    """Let this process reach the store at an endpoint without faults; its children meet faults."""
    _own_endpoint[:] = [endpoint]


def find_store() -> ObjectStore | None:
    """The store with the lakes of this run, for this process; None if they are in folders."""
    return describe_store(_own_endpoint[0]) if _own_endpoint else find_store_of_children()


def find_store_of_children() -> ObjectStore | None:
    """The store with the lakes of this run, for child processes; None if they are in folders."""
    endpoint = os.environ.get(STORE_VARIABLE)
    return None if endpoint is None else describe_store(endpoint)


def locate_lake(folder: Path) -> LakePlace:
    """The place of a lake that a test would have in a folder."""
    store = find_store()
    if store is None:
        return LocalPlace.of(folder)
    return ObjectPlace(f"s3://{BUCKET}/{name_lake(folder)}", store)


def name_lake(folder: Path) -> str:
    """The name in the store of a lake that a test would have in a folder."""
    return re.sub(r"[^A-Za-z0-9_.=-]+", "-", str(folder)).strip("-")


def copy_lake(root: LakePlace, copied: LakePlace) -> None:
    """Copy a lake to another root of the same kind of storage."""
    if isinstance(root, LocalPlace) and isinstance(copied, LocalPlace):
        shutil.copytree(root.path, copied.path)
        return
    assert isinstance(root, ObjectPlace)
    client, bucket = root.store.connect(), f"s3://{BUCKET}/"
    for batch in obstore.list(client, root.uri.removeprefix(bucket) + "/"):
        for found in batch:
            name = f"{bucket}{found['path']}".removeprefix(root.uri)
            obstore.copy(client, found["path"], (copied.uri + name).removeprefix(bucket))


def mirror_lake(root: ObjectPlace, folder: Path) -> None:
    """Make a folder the copy of a lake in a store. What is there already is not copied again."""
    client, prefix = root.store.connect(), root.uri.removeprefix(f"s3://{BUCKET}/")
    names: set[Path] = set()
    for batch in obstore.list(client, prefix):
        for found in batch:
            file = folder / found["path"].removeprefix(f"{prefix}/")
            names.add(file)
            written_s = found["last_modified"].timestamp()
            # Only these are written again, unless another lake takes the place of this one.
            is_rewritten = file.name in {"_last_checkpoint", TOMBSTONES}
            if is_rewritten or not file.exists() or file.stat().st_mtime != written_s:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bytes(obstore.get(client, found["path"]).bytes()))
                os.utime(file, (written_s, written_s))
    for file in folder.rglob("*"):
        if file.is_file() and file not in names:
            file.unlink()


def path_of(place: LakePlace) -> Path:
    """The path of a place in the lake, for what only a test does there."""
    if not isinstance(place, LocalPlace):
        pytest.skip("it looks at files of its lake, which is in a store")
    return place.path
