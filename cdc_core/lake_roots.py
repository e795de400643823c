"""Reads the root of a lake from its text: a folder, or a place in an object store.

What the settings leave out about a store comes from the environment variables of AWS. Credentials
come from the host alone (`lake_storage.store_credentials`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.object_place import ObjectPlace
from cdc_core.lake_storage.object_store import SCHEME, ObjectStore

# The allowed options of a store, by the names of delta-rs, and the variables that can replace them.
_OPTIONS: dict[str, tuple[str, ...]] = {
    "aws_region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
    "aws_endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "aws_allow_http": (),
    "aws_virtual_hosted_style_request": (),
}
_FLAGS = {"aws_allow_http", "aws_virtual_hosted_style_request"}
_SECRET = re.compile(r"secret|token|access_key|password|credential", re.IGNORECASE)
# delta-rs reads a path as a URL, in which these are forbidden or stand for other characters.
_NOT_OPENABLE = re.compile(r"[\[\]|^\\\x00-\x1f\x7f]|%[0-9A-Fa-f]{2}")
# Source: Amazon S3 User Guide, "General purpose bucket naming rules".
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# Spark, delta-rs and obstore take these as they are. Others mean something to one of them.
_NAME = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9_.=-]+")
_ROOT_FIX = f'for example root = "lake" for a folder, or root = "{SCHEME}bucket/lake"'
_CREDENTIALS_FIX = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give this host a role"
)
_REGION_FIX = 'for example storage_options = { aws_region = "eu-central-1" }, the bucket\'s region'


def is_in_store(root: object) -> bool:
    """Whether the text of a root names a place in some kind of store."""
    return isinstance(root, str) and "://" in root


def parse_options(written: Mapping[str, object]) -> dict[str, str]:
    """Read the options of a store. Raises: ValueError with what is wrong."""
    options: dict[str, str] = {}
    for name, value in written.items():
        option = name.lower()
        if _SECRET.search(option):
            raise ValueError(f"expected no credentials, found {name}: {_CREDENTIALS_FIX}")
        if option not in _OPTIONS:
            raise ValueError(f"expected {', '.join(_OPTIONS)}, found {name}")
        text = str(value).lower() if isinstance(value, bool) else value
        if not isinstance(text, str) or not text:
            raise ValueError(f"expected a text for {option}")
        if option in _FLAGS and text not in {"true", "false"}:
            raise ValueError(f"expected true or false for {option}, found {text!r}")
        options[option] = text
    return options


class RootError(ValueError):
    """What is wrong with the root of a lake or with the options of its store, and the fix."""

    def __init__(self, expected: str, *, fix: str = _ROOT_FIX) -> None:
        """Pydantic shows `expected`."""
        super().__init__(expected)
        self.fix = fix


def locate_folder(folder: Path) -> LocalPlace:
    """The root of a lake in a folder.

    Raises: ValueError if delta-rs panics at this path, or mistakes it for another folder.
    """
    if (found := _NOT_OPENABLE.search(str(folder))) is not None:
        raise ValueError(
            f"expected a path without {found[0]!r}, because Delta's library cannot open it:"
            f" {folder}"
        )
    return LocalPlace.of(folder)


def locate_in_store(
    root: str, options: Mapping[str, str], environ: Mapping[str, str]
) -> ObjectPlace:
    """The root of a lake in an object store. Raises: RootError."""
    if not root.startswith(SCHEME):
        raise RootError(f"expected a folder, or {SCHEME} with a bucket")
    bucket, *names = root.removeprefix(SCHEME).split("/")
    if "@" in bucket:
        raise RootError(f"expected no credentials after {SCHEME}", fix=_CREDENTIALS_FIX)
    if not _BUCKET.fullmatch(bucket):
        raise RootError(
            f"expected the name of a bucket after {SCHEME}: 3 to 63 lower-case letters, digits,"
            " dots and hyphens"
        )
    if not all(_NAME.fullmatch(name) for name in names):
        raise RootError(
            "expected names of letters, digits and _.=- after the bucket, with one slash between"
            " two of them and none at the end"
        )
    found = _complete(options, environ)
    if "aws_region" not in found:
        raise RootError(
            "expected aws_region in storage_options, or AWS_REGION in the environment",
            fix=_REGION_FIX,
        )
    if "@" in found.get("aws_endpoint", ""):
        raise RootError("expected no credentials in aws_endpoint", fix=_CREDENTIALS_FIX)
    is_unencrypted = found.get("aws_endpoint", "").startswith("http://")
    if is_unencrypted and found.get("aws_allow_http") != "true":
        raise RootError(
            f"expected aws_allow_http = true for {found['aws_endpoint']}, which is not encrypted",
            fix='set aws_allow_http = "true" in storage_options, or use https://',
        )
    return ObjectPlace(root, ObjectStore(bucket, tuple(sorted(found.items()))))


def _complete(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Add the options that only the environment has."""
    found = dict(options)
    for option, variables in _OPTIONS.items():
        for variable in variables:
            if environ.get(variable):
                found.setdefault(option, environ[variable])
    return found
