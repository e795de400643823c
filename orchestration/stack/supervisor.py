"""Restarts programs that end, after a longer pause each time that one ends early."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from cdc_core.backoff import Backoff

Program = Literal["code-server", "web", "daemon"]

_logger = logging.getLogger("walgate.up")
_POLL_S = 0.25
# A killed program soon runs again. A program that cannot start imports Dagster at each try, which
# takes seconds of CPU.
_BACKOFF = Backoff(first_s=0.5, max_s=30.0)
# A program that ran this long had started well: its failures count from 1 again.
_LASTING_S = 60.0


@dataclass(slots=True)
class _Kept:
    """One program, and how often in a row it ended early."""

    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)
    failures: int = 0
    # The time of its restart; None while it runs.
    due: float | None = None


class Supervisor:
    """Programs that run until `end` ends them."""

    def __init__(self, start: Mapping[Program, Callable[[], subprocess.Popen[bytes]]]) -> None:
        """Start every program; a program that ends is restarted only after `keep`."""
        self._start = start
        self._kept: dict[Program, _Kept] = {}
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="walgate-keeper", daemon=True)
        for name, start_program in start.items():
            self._kept[name] = _Kept(start_program())

    @property
    def pids(self) -> dict[Program, int]:
        """The process id of each program; the last one if the program has ended."""
        with self._lock:
            return {name: kept.process.pid for name, kept in self._kept.items()}

    def find_ended(self) -> tuple[Program, int] | None:
        """A program that has ended, and its exit code; None if all run."""
        with self._lock:
            for name, kept in self._kept.items():
                code = kept.process.poll()
                if code is not None:
                    return name, code
        return None

    def keep(self) -> None:
        """Begin to restart programs that end."""
        self._thread.start()

    def end(self, name: Program, *, grace_s: float) -> None:
        """End a program for good: SIGTERM, then SIGKILL."""
        with self._lock:
            kept = self._kept.pop(name, None)
        if kept is None:
            return
        kept.process.terminate()
        try:
            kept.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            kept.process.kill()
            kept.process.wait()

    def close(self) -> None:
        """Stop restarting programs; those that run go on."""
        self._finished.set()
        if self._thread.is_alive():
            self._thread.join()

    def _keep(self) -> None:
        while not self._finished.wait(_POLL_S):
            with self._lock:
                for name, kept in self._kept.items():
                    self._look_at(name, kept)

    def _look_at(self, name: Program, kept: _Kept) -> None:
        now = time.monotonic()
        if kept.due is None:
            code = kept.process.poll()
            if code is None:
                return
            kept.failures = 1 if now - kept.started_at > _LASTING_S else kept.failures + 1
            pause = _BACKOFF.pause_after(kept.failures)
            kept.due = now + pause
            fields = {"program": name, "exit": code, "restart_in_s": pause}
            _logger.warning("program ended", extra={"fields": fields})
        elif now >= kept.due:
            kept.process = self._start[name]()
            kept.started_at, kept.due = now, None
            fields = {"program": name, "pid": kept.process.pid}
            _logger.info("program restarted", extra={"fields": fields})
