"""Starts the processes of a stack with a mark, finds them by it, and ends them.

A stack is a folder of state. Its processes, and all that these start, inherit its path in their
environment. This mark proves that a process which a killed supervisor left is ours. Only marked
processes and their children are ended. A program that writes its title over its environment hides
the mark (Redis does, unless it is started with `--set-proc-title no`).
"""

from __future__ import annotations

import fcntl
import logging
import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from cdc_core.errors import Retry, WalgateError

_logger = logging.getLogger("walgate.up")
STACK_VARIABLE = "WALGATE_STACK"
_LOCK_NAME = "up.lock"
# Leftover writers drain at SIGTERM. They lose nothing if they are killed after this time.
_LEFTOVERS_GRACE_S = 20.0
_KILL_ROUNDS = 3


class StackInUse(WalgateError):
    """Another process holds the stack."""


@contextmanager
def hold_stack(stack: Path) -> Iterator[None]:
    """Hold a stack for this process alone; first end what an earlier holder left running.

    Raises: StackInUse; WalgateError if the folder cannot be written.
    """
    try:
        stack.mkdir(parents=True, exist_ok=True)
        lock = (stack / _LOCK_NAME).open("a+", encoding="ascii")
    except OSError as error:
        raise WalgateError(
            f"{stack} cannot be written: {error.strerror}",
            fix="let this user write there",
            retry=Retry.AFTER_FIX,
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _describe_holder(stack) from None
        os.ftruncate(lock.fileno(), 0)
        os.pwrite(lock.fileno(), str(os.getpid()).encode("ascii"), 0)
        # The process that started these is gone: it would hold the lock.
        if ended := end_processes(stack, grace_s=_LEFTOVERS_GRACE_S):
            _logger.warning("leftovers ended", extra={"fields": {"processes": ended}})
        yield


def start_process(
    arguments: Sequence[str | Path],
    *,
    stack: Path,
    log: Path,
    environment: Mapping[str, str],
    folder: Path,
    user: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process of a stack; append its output to a log.

    It leads a session of its own, so that a terminal's Ctrl-C reaches only the supervisor. The
    caller must handle SIGINT: if it is ignored, the process and all that it starts ignore it too.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**environment, STACK_VARIABLE: str(stack.resolve())},
            start_new_session=True,
            **_identify(user),
        )


def find_processes(stack: Path) -> list[psutil.Process]:
    """Every live process with the mark of a stack, or of a stack below it, and their children.

    Never this process, nor one of its parents.
    """
    root = stack.resolve()
    marked = [process for process in psutil.process_iter() if _is_marked(process, root)]
    found = {process.pid: process for process in marked}
    for process in marked:
        # A child may hide its mark, for example a server's backend.
        found.update({child.pid: child for child in _list_children(process)})
    ours = psutil.Process()
    for kin in (ours, *ours.parents()):
        found.pop(kin.pid, None)
    return [process for process in found.values() if _is_alive(process)]


def end_processes(stack: Path, *, grace_s: float) -> int:
    """End every process of a stack: SIGTERM, then SIGKILL to the rest; return their number."""
    ended = set()
    for process in (found := find_processes(stack)):
        ended.add(process.pid)
        _signal(process, is_last=False)
    psutil.wait_procs(found, timeout=grace_s)
    # A killed process may have started another one before.
    for _ in range(_KILL_ROUNDS):
        found = find_processes(stack)
        for process in found:
            ended.add(process.pid)
            _signal(process, is_last=True)
        psutil.wait_procs(found, timeout=grace_s)
    return len(ended)


def _identify(user: str | None) -> dict[str, Any]:
    """Arguments of Popen that run a process as `user`, with none of our groups."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _describe_holder(stack: Path) -> StackInUse:
    holder = (stack / _LOCK_NAME).read_text(encoding="ascii") or "another"
    return StackInUse(
        f"process {holder} runs the stack of {stack} already",
        fix="stop it with Ctrl-C or SIGTERM, or use the running stack",
        retry=Retry.LATER,
    )


def _is_marked(process: psutil.Process, root: Path) -> bool:
    try:
        mark = process.environ().get(STACK_VARIABLE)
    # The process is another user's, has ended, or is a kernel thread.
    except (psutil.Error, OSError):
        return False
    return mark is not None and Path(mark).is_relative_to(root)


def _list_children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, *, is_last: bool) -> None:
    try:
        if is_last:
            process.kill()
        else:
            process.terminate()
    except psutil.NoSuchProcess:
        pass
