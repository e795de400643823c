"""Reads when a process started, in a form that no clock changes: the boot, and ticks since then.

If somebody sets the wall clock, the start time that other programs compute from it changes, even
for a live process.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def read_boot() -> str:
    """Name this boot of this machine; "-" if the system has no name for it."""
    boot = _PROC / "sys/kernel/random/boot_id"
    return boot.read_text(encoding="ascii").strip() if boot.exists() else "-"


def read_start(process: int) -> str:
    """Read when a process started, in ticks since the boot; "" if it has ended.

    The system may give the id of an ended process to another process, with another start. Without
    /proc, the result is "alive" for every live process.
    """
    try:
        status = (_PROC / str(process) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return _probe(process)
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _probe(process: int) -> str:
    """Give "alive" for a live process if the system has no /proc; "" otherwise."""
    if (_PROC / "self").exists():
        return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    return "alive"
