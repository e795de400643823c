"""Where the lakes of the tests are: in folders of this host, or in an object store.

`pytest --lakes-in-store` runs a store, and puts the lakes there. A test that looks at files of its
lake is skipped then.
"""

from __future__ import annotations

import os
import re
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

# Marks a test that writes files of its lake by itself, or needs a disk that fails.
on_disk = pytest.mark.skipif(
    f"'{STORE_VARIABLE}' in os.environ", reason="it needs its lake on a disk of this host"
)


def describe_store(endpoint: str) -> ObjectStore:
    """The store that a server at an endpoint is."""
    options = {"aws_allow_http": "true", "aws_endpoint": endpoint, "aws_region": "us-east-1"}
    return ObjectStore(BUCKET, tuple(options.items()))


def find_store() -> ObjectStore | None:
    """The store with the lakes of this run; None if they are in folders."""
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


def mirror_lake(root: ObjectPlace, folder: Path) -> None:
    """Make a folder the copy of a lake in a store. What is there already is not copied again."""
    client, prefix = root.store.connect(), root.uri.removeprefix(f"s3://{BUCKET}/")
    names: set[Path] = set()
    for batch in obstore.list(client, prefix):
        for found in batch:
            file = folder / found["path"].removeprefix(f"{prefix}/")
            names.add(file)
            # Only these are written again.
            if not file.exists() or file.name in {"_last_checkpoint", TOMBSTONES}:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(bytes(obstore.get(client, found["path"]).bytes()))
    for file in folder.rglob("*"):
        if file.is_file() and file not in names:
            file.unlink()


def path_of(place: LakePlace) -> Path:
    """The path of a place in the lake, for what only a test does there."""
    if not isinstance(place, LocalPlace):
        pytest.skip("it looks at files of its lake, which is in a store")
    return place.path
