"""Locks of a lake that is in a file system.

A lock is a file in `locks/` of the lake, held by `flock`. It names the JVM that commits. The kernel
frees the lock of a killed process at once, but the process's JVM may still commit. So the next
holder waits until that JVM is gone. If other hosts do not see the `flock` of a file system, a lock
protects nothing. Delta then refuses the second commit, since a commit names the version that it
extends.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from cdc_core.errors import MergeError, Retry
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.lock_wait import wait_for_lock
from cdc_core.process_start import read_boot, read_start

_POLL_S = 0.05
# Errors of a file system that has no locks.
_NO_LOCKS = frozenset({errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL})


@contextmanager
def hold_file_lock(file: LocalPlace, name: str, *, jvm: int | None) -> Iterator[None]:
    """Hold the lock of a name while a block runs; `jvm` is the process that commits.

    Raises: MergeError if another process keeps the lock, or the file system has no locks.
    """
    file.parent.make_folder()
    with file.path.open("a+", encoding="ascii") as lock:

        def try_take() -> bool:
            return _try_lock(lock.fileno(), file) and _is_released(lock.fileno(), jvm)

        # A JVM whose process was killed ends within a second or two; a busy machine takes longer.
        wait_for_lock(try_take, name, poll_s=_POLL_S)
        os.ftruncate(lock.fileno(), 0)
        if jvm is not None:
            holder = f"{_name_place(lock.fileno())} {jvm} {read_start(jvm)}"
            os.pwrite(lock.fileno(), holder.encode("ascii"), 0)
        yield
        # Not after an error: the JVM may still commit, so the next holder waits for its end.
        os.ftruncate(lock.fileno(), 0)


def _try_lock(descriptor: int, file: LocalPlace) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as exc:
        if exc.errno not in _NO_LOCKS:
            raise
        raise MergeError(
            f"{file.parent} is on a file system without flock",
            fix="put the lake on a file system that supports flock",
            retry=Retry.AFTER_FIX,
        ) from exc
    return True


def _is_released(descriptor: int, jvm: int | None) -> bool:
    """Whether the JVM that the last holder named is gone, is ours, or is on another machine.

    A JVM on another machine cannot be checked. If it still commits, Delta refuses one of
    the two commits.
    """
    left = os.pread(descriptor, 256, 0).decode("ascii").split()
    if len(left) < 3:  # noqa: PLR2004 - Place, process, and its start, if it had one.
        return True
    place, process, *start = left
    if place != _name_place(descriptor) or int(process) == jvm:
        return True
    return [read_start(int(process))] != start


def _name_place(descriptor: int) -> str:
    """Name this machine's boot and this file, since a lock in a copied lake must not count."""
    status = os.fstat(descriptor)
    return f"{read_boot()}:{status.st_dev}:{status.st_ino}"
