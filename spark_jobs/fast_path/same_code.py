"""Lets Spark tasks run this program's code only where the executor has the same code.

On a cluster, executors import the modules that their own machines have. Another version of them
may compute other rows, or fail. So each task compares the digest of its code with that of the
driver, and refuses to work if they differ. Spark then merges the tables in its own way.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import resources
from importlib.metadata import version
from importlib.resources.abc import Traversable
from typing import TypeVar

from pyspark.sql import SparkSession

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
# The packages whose code the tasks run.
_PACKAGES = ("cdc_core", "spark_jobs")
# The libraries with which the tasks make, read and write data.
_LIBRARIES = ("pyarrow", "obstore")
# Seconds. After a refusal, the driver does not ask the executors again for this time.
_PATIENCE_S = 600.0

_SIGN = "walgate: this executor has other code than the driver"
# What the text of a failed task says if its executor has other code, or none.
_SIGNS = (_SIGN, "ModuleNotFoundError", "PackageNotFoundError", "Can't get attribute")
_logger = logging.getLogger("walgate.merge")

# When the executors of an application refused last.
_refused: dict[str, float] = {}


class OtherCode(Exception):
    """An executor lacks the code of the driver, or has another version of it."""


def _digest_code() -> str:
    """The digest of the code that tasks run, and of the versions of Python and of libraries."""
    versions = [f"{name} {version(name)}" for name in _LIBRARIES]
    digest = hashlib.sha256(f"{sys.version_info[:2]} {versions}".encode())
    for package in _PACKAGES:
        for name, text in sorted(_list_modules(resources.files(package), package)):
            digest.update(f"{name}\0".encode() + text)
    return digest.hexdigest()


def run_on_executors(
    session: SparkSession, items: Sequence[_Item], work: Callable[[_Item], _Result]
) -> list[_Result]:
    """Do work for each item in a task of its own, by exactly this program's code.

    Raises: OtherCode; what Spark raises if a task fails.
    """
    context = session.sparkContext
    application = context.applicationId
    if time.monotonic() - _refused.get(application, -_PATIENCE_S) < _PATIENCE_S:
        raise OtherCode
    # The tasks of a local master come from a daemon of this host, with the code that is installed.
    is_local = (context.master or "").startswith("local")
    task = work if is_local else partial(_run, work=work, digest=_DIGEST)
    try:
        return context.parallelize(items, len(items)).map(task).collect()
    except Exception as error:
        # The executor reports its error as text. Without our code, it cannot even load the task.
        if is_local or not any(sign in str(error) for sign in _SIGNS):
            raise
        _refused[application] = time.monotonic()
        _logger.warning(
            "the executors lack code of this program, or have another version: Spark merges the"
            " tables in its own way, which is slower",
            extra={"fields": {"fix": "install this version of walgate where executors run"}},
        )
        raise OtherCode from error


def _run(item: _Item, *, work: Callable[[_Item], _Result], digest: str) -> _Result:
    if digest != _DIGEST:
        raise OtherCode(_SIGN)
    return work(item)


def _list_modules(folder: Traversable, name: str) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _list_modules(entry, f"{name}.{entry.name}")
        elif entry.name.endswith(".py"):
            found.append((f"{name}.{entry.name}", entry.read_bytes()))
    return found


# The digest covers the files as they were when this module was loaded: a later upgrade does not
# change what runs.
_DIGEST = _digest_code()
