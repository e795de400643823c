"""Tries in an object store what Walgate needs of it, so that a problem is found at the start.

The store must write, read, list and delete. It must also refuse to create an object that exists,
and to replace one that has changed since it was read: no lake is safe without that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from cdc_core.errors import LakeError, Retry
from cdc_core.lake_storage.object_place import ObjectPlace, Refused
from cdc_core.lake_storage.object_store import StoreFailed
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.store_credentials import NoCredentials

# The texts differ, because the store gives equal texts equal tags.
_TEXTS = [f"{number}: written by walgate check" for number in ("first", "second", "third")]
_PROBE = "_check-"
# No check takes this long. Microseconds.
_LONGEST_CHECK_US = 3_600_000_000
_REGION_FIX = "set aws_region in [lake] storage_options, or AWS_REGION, to the bucket's region"
_KEY_FIX = (
    "renew the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, the"
    " profile in AWS_PROFILE, or the role of this host"
)
_RIGHTS_FIX = "allow these credentials to list the bucket, and to get, put and delete its objects"
# What to do about the codes of a store. Source: Amazon S3 API Reference, "Error responses".
_FIXES = {
    "NoSuchBucket": "make the bucket, or correct [lake] root",
    "AccessDenied": _RIGHTS_FIX,
    "AllAccessDisabled": _RIGHTS_FIX,
    "AuthorizationHeaderMalformed": _REGION_FIX,
    "PermanentRedirect": _REGION_FIX,
    "IllegalLocationConstraintException": _REGION_FIX,
    "ExpiredToken": _KEY_FIX,
    "TokenRefreshRequired": _KEY_FIX,
    "InvalidAccessKeyId": _KEY_FIX,
    "InvalidToken": _KEY_FIX,
    "SignatureDoesNotMatch": _KEY_FIX,
    "RequestTimeTooSkewed": "set the clock of this host",
}
_USUAL_FIX = "check aws_endpoint in [lake] storage_options, the network, and the store"


@dataclass(frozen=True, slots=True)
class StoreProblem:
    """What an object store does not do, or does not allow these credentials."""

    what: str
    expected: str
    found: str
    fix: str


def find_store_problems(root: LakePlace) -> list[StoreProblem]:
    """Find what the store of a lake cannot do; nothing for a folder.

    Removes its own probe, and old probes of checks that were killed.
    """
    return [] if not isinstance(root, ObjectPlace) else [*_find_problems(root)]


def require_store(root: LakePlace) -> None:
    """Check that the store of a lake can do what Walgate needs. Raises: LakeError."""
    problems = find_store_problems(root)
    if not problems:
        return
    fixes = dict.fromkeys(problem.fix for problem in problems)
    raise LakeError(
        "; ".join(f"{problem.what}: {problem.found}" for problem in problems),
        fix="; ".join(fixes),
        # The network, or the store, may be back soon.
        retry=Retry.LATER if {*fixes} == {_USUAL_FIX} else Retry.AFTER_FIX,
    )


def _find_problems(root: ObjectPlace) -> Iterator[StoreProblem]:
    probe = root / f"{_PROBE}{uuid.uuid4()}"
    written: list[str] = []
    tries: dict[str, Callable[[], object]] = {
        "write an object": lambda: written.append(_write(probe, _TEXTS[0], None)),
        "read an object": probe.read_text,
        "list objects": lambda: _remove_old_probes(root),
        "refuse to create an object that exists": lambda: _require_refusal(probe, _TEXTS[1], None),
        "refuse to replace an object that has changed": lambda: _replace_twice(probe),
        "delete a list of objects": lambda: root.remove_files([probe.name]),
    }
    try:
        for name, do in tries.items():
            try:
                do()
            except _Accepted:
                yield StoreProblem(
                    f"the store of {root} does not {name}",
                    name,
                    "it ignores the condition, and writes",
                    "use a store that honours If-None-Match and If-Match on PUT",
                )
            except OSError as error:
                yield _describe(root, name, error)
                if not written:  # Nothing else can be tried.
                    return
    finally:
        with suppress(OSError):
            probe.remove()


def _remove_old_probes(root: ObjectPlace) -> None:
    """List the objects of the root, and remove the probes of checks that were killed."""
    probes = [file for file in root.list_files() if file.name.startswith(_PROBE)]
    limit_us = max((file.modified_us for file in probes), default=0) - _LONGEST_CHECK_US
    for file in probes:
        if file.modified_us < limit_us:
            with suppress(OSError):
                (root / file.name).remove()


class _Accepted(Exception):
    """The store did a write that it had to refuse."""


def _write(probe: ObjectPlace, text: str, tag: str | None) -> str:
    """Write the object on a condition that is true; return its tag. Raises: OSError."""
    try:
        return probe.write_text_if(text, tag)
    except Refused:
        # The first try may have succeeded without a reply. Then the second one is refused.
        found = probe.read_tagged()
        if found is None or found.text != text:
            raise StoreFailed("it refuses a write whose condition is true", probe.uri) from None
        return found.tag


def _require_refusal(probe: ObjectPlace, text: str, tag: str | None) -> None:
    with suppress(Refused):
        probe.write_text_if(text, tag)
        raise _Accepted


def _replace_twice(probe: ObjectPlace) -> None:
    """Replace an object twice with the same tag: the second time, the tag is old."""
    found = probe.read_tagged()
    if found is None:
        raise StoreFailed("the object is gone", probe.uri)
    _write(probe, _TEXTS[2], found.tag)
    # If the store ignored a condition before, this text is not the one that it has.
    _require_refusal(probe, _TEXTS[0], found.tag)


def _describe(root: ObjectPlace, name: str, error: OSError) -> StoreProblem:
    if isinstance(error, NoCredentials):
        return StoreProblem(f"{root} cannot be reached", name, str(error), _KEY_FIX)
    code = error.code if isinstance(error, StoreFailed) else str(error.strerror or error)
    return StoreProblem(
        f"the store of {root} does not {name}", name, code, _FIXES.get(code, _USUAL_FIX)
    )
