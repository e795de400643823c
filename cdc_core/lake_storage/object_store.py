"""Connections to object stores that speak the protocol of S3.

obstore and delta-rs use the same library for this, so both take the same options and try again in
the same way.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, cast

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from cdc_core.lake_storage.store_credentials import StoreCredentials, find_credentials

if TYPE_CHECKING:
    from obstore.store import S3Config

SCHEME = "s3://"
_ALLOW_HTTP = "aws_allow_http"
_PREFIX = "aws_"
_NO_BUCKET, _OTHER_REGION = "NoSuchBucket", "PermanentRedirect"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a request may take, and how long the library repeats one that failed. Seconds."""

    request_s: int = 30
    all_tries_s: int = 60


_USUAL = Patience()
# The processes that used a store: this one, and those from which it was forked.
_users = set[int]()


@dataclass(frozen=True, slots=True, order=True)
class ObjectStore:
    """Where an object store is: its bucket, and options by the names of delta-rs. No secrets."""

    bucket: str
    options: tuple[tuple[str, str], ...] = ()

    def find_options(self) -> dict[str, str]:
        """Find all options of delta-rs, with the credentials of this host. Raises: OSError."""
        credentials = find_credentials(os.environ)
        secret = {} if credentials is None else credentials.name_options()
        return {
            "timeout": f"{_USUAL.request_s}s",
            "retry_timeout": f"{_USUAL.all_tries_s}s",
            **dict(self.options),
            **secret,
        }

    def connect(self, *, patience: Patience = _USUAL) -> S3Store:
        """Give this process's connection; open it at its first use. Raises: OSError."""
        _require_own_threads()
        return _connect(self, find_credentials(os.environ), patience)


class StoreFailed(OSError):
    """The store answered with an error, or did not answer. `code` is the store's own code for it.

    Without such a code, `code` is the reason in words.
    """

    def __init__(self, code: str, uri: str) -> None:
        """Name the code and the object."""
        super().__init__(errno.EIO, f"the store failed: {code}", uri)
        self.code = code


@contextmanager
def raising_os_errors(uri: str) -> Iterator[None]:
    """Turn the store's errors into OSError.

    FileNotFoundError if no object has the name; FileExistsError if the store refuses a condition.
    """
    try:
        yield
    except (FileNotFoundError, NotFoundError) as error:
        # A missing bucket must not look like a missing object.
        if (code := _find_code(error)) == _NO_BUCKET:
            raise StoreFailed(code, uri) from error
        raise FileNotFoundError(errno.ENOENT, "no such object in the store", uri) from error
    except (AlreadyExistsError, PreconditionError) as error:
        raise FileExistsError(errno.EEXIST, "the object is not as it was", uri) from error
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise StoreFailed(_find_code(error) or "a refusal of the credentials", uri) from error
    except (BaseError, RuntimeError, ValueError) as error:
        # The library appends the path of its source code to the first line.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise StoreFailed(_find_code(error) or reason, uri) from error


def _find_code(error: Exception) -> str | None:
    """The code of the store's answer. Source: Amazon S3 API Reference, "Error responses"."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    if found is None:
        # The library follows redirects. S3 gives no address for that of another region.
        return _OTHER_REGION if "redirect without LOCATION" in str(error) else None
    return found[1]


def _require_own_threads() -> None:
    """Refuse a fork of a process that used a store.

    The library's threads are in that process alone. The fork would never get an answer.
    """
    _users.add(os.getpid())
    if len(_users) > 1:
        raise OSError("this process is a fork of one that used the object store: start a new one")


@lru_cache(maxsize=8)
def _connect(
    store: ObjectStore, credentials: StoreCredentials | None, patience: Patience
) -> S3Store:
    options = dict(store.options)
    named = {} if credentials is None else credentials.name_options()
    named |= {name: value for name, value in options.items() if name != _ALLOW_HTTP}
    config = {name.removeprefix(_PREFIX): value for name, value in named.items()}
    with raising_os_errors(f"{SCHEME}{store.bucket}"):
        return S3Store(
            store.bucket,
            config=cast("S3Config", config),
            client_options={
                "allow_http": options.get(_ALLOW_HTTP) == "true",
                "timeout": timedelta(seconds=patience.request_s),
            },
            retry_config={"retry_timeout": timedelta(seconds=patience.all_tries_s)},
        )
