"""A server or command of the tests that never outlives them.

Each child has a guard: a shell that waits on a pipe held by this process. When this process dies,
however it dies, the pipe closes and the guard signals the child's group and removes its folder. A
parent-death signal would not do: it follows the thread that started the child, and is lost when the
child changes its user.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Every child would inherit what is ignored: a hang-up under nohup, an interrupt behind the `&` of a
# shell, and then SIGTERM too, which Dagster handles as it finds an interrupt handled.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)

STOP_DEADLINE_S = 60.0
_GUARD = """
read -r _
kill -s "$1" -- "-$2" 2>/dev/null
for _ in $(seq 600); do kill -s 0 -- "$2" 2>/dev/null || break; sleep 0.1; done
[ -z "$3" ] || rm -rf -- "$3"
"""


class ChildProcess:
    """One running child in a session of its own, its output in a file."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        user: str | None = None,
        folder: Path | None = None,
        guard_signal: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Start the child; `folder` is removed with it only if this process dies."""
        self.log = log
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(os.environ if environment is None else environment),
                start_new_session=True,
                **identity_of(user),
            )
        signal_name = guard_signal.name.removeprefix("SIG")
        self._guard = subprocess.Popen(
            ["sh", "-c", _GUARD, "guard", signal_name, str(self.pid), str(folder or "")],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """Id of the child, also of its process group."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._child.poll()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.exit_code is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the child alone."""
        self._child.send_signal(number)

    def wait(self, deadline_s: float = STOP_DEADLINE_S) -> int:
        """Wait for its end and give its exit code."""
        code = self._child.wait(deadline_s)
        self._dismiss_guard()
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; kill the group if it does not come."""
        self.send(number)
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Kill the child and its group at once, as a crash would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def output(self) -> str:
        """All it has written so far."""
        return self.log.read_text(errors="replace")

    def _dismiss_guard(self) -> None:
        if self._guard.poll() is None:
            self._guard.kill()
        self._guard.wait()
        if self._guard.stdin:
            self._guard.stdin.close()


def identity_of(user: str | None) -> dict[str, Any]:
    """Arguments of `subprocess` that run a child as this user; None is the user we are."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}
