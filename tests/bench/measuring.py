"""What processes take while a system drains: CPU time and memory, looked at many times a second."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import psutil

_LOOK_S = 0.02


@dataclass(slots=True)
class Use:
    """Of one process: CPU seconds at the first look and at the last, and its peak memory."""

    first_cpu_s: float
    last_cpu_s: float
    peak_bytes: int

    @property
    def cpu_s(self) -> float:
        """CPU seconds taken in between."""
        return self.last_cpu_s - self.first_cpu_s


@dataclass(slots=True)
class Meter:
    """Looks at processes, by what they are called, until it is left."""

    pids: Mapping[str, int]
    uses: dict[str, Use] = field(default_factory=dict)
    _processes: dict[str, psutil.Process] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Look for the first time."""
        self._processes = {name: psutil.Process(pid) for name, pid in self.pids.items()}
        self._look()
        self._thread = threading.Thread(target=self._run, name="bench-meter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Look for the last time."""
        assert self._thread is not None
        self._over.set()
        self._thread.join()
        self._look()

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process."""
        return {name: use.cpu_s for name, use in self.uses.items()}

    def peak_bytes(self, *names: str) -> int:
        """Peak memory of some processes together."""
        return sum(use.peak_bytes for name, use in self.uses.items() if name in names)

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._look()

    def _look(self) -> None:
        for name, process in self._processes.items():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    resident = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue  # It has ended; the last look stands.
            cpu_s = times.user + times.system
            use = self.uses.setdefault(name, Use(cpu_s, cpu_s, resident))
            if cpu_s < use.last_cpu_s:
                continue  # A process that is being reaped.
            use.last_cpu_s = cpu_s
            use.peak_bytes = max(use.peak_bytes, resident)
