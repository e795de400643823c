"""When a process started, in a form that no clock changes: its boot and its ticks since the boot.

A wall clock that is set changes the start time that others compute for a live process.
"""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


def read_boot() -> str:
    """Name this boot of this machine; "-" where the system does not."""
    boot = _PROC / "sys/kernel/random/boot_id"
    return boot.read_text(encoding="ascii").strip() if boot.exists() else "-"


def read_start(process: int) -> str:
    """Read when a process started, so that a recycled id is not taken for it; "" if it is gone."""
    try:
        status = (_PROC / str(process) / "stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return _probe(process)
    fields = status.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else fields[19]


def _probe(process: int) -> str:
    """The same where there is no /proc: only whether the process lives."""
    if (_PROC / "self").exists():
        return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    return "alive"
