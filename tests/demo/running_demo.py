"""`walgate demo` as a real child process, its stack in this process, and what of it is alive."""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import psutil

from orchestration.demo.demo import STEPS
from orchestration.demo.show import Show
from orchestration.demo.stack import DemoOptions, Stack, running_stack
from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.walgate_command import walgate_command, walgate_environment

T = TypeVar("T")

# A machine with other work on its two cores is given time.
DEADLINE_S = 900.0


class RunningDemo:
    """One demo, from its start to its end."""

    def __init__(self, folder: Path, *options: str, log: str = "demo.out") -> None:
        """Start it; everything of it goes to `folder`."""
        self.folder = folder
        self.child = ChildProcess(
            walgate_command("demo", "--folder", folder, *options),
            log=folder.parent / log,
            environment=walgate_environment(),
            # It ends its own processes, each of which leads a session.
            guard_signal=signal.SIGTERM,
        )

    @property
    def output(self) -> str:
        """All it has said."""
        return self.child.output()

    def wait_until(self, condition: Callable[[], T], what: str) -> T:
        """Wait for a state while it runs."""

        def look() -> T:
            assert self.child.is_running, self.output
            return condition()

        try:
            return wait_for(look, DEADLINE_S, what)
        except AssertionError as error:
            error.add_note(self.output)
            raise

    def wait_for_line(self, text: str) -> None:
        """Wait until it has said something."""
        self.wait_until(lambda: text in self.output, f"the demo to say {text!r}")

    def stop(self, number: signal.Signals) -> int:
        """Send a signal and give the exit code."""
        self.child.send(number)
        return self.child.wait(DEADLINE_S)

    def find_left(self) -> list[psutil.Process]:
        """Give what lives and bears the mark of its folder, or works in its servers' folder."""
        return [process for process in psutil.process_iter() if self._is_of_it(process)]

    def end(self) -> None:
        """End it and whatever it left."""
        if self.child.is_running:
            self.child.kill()
        left = self.find_left()
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=60)

    def _is_of_it(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE or process.pid == self.child.pid:
                return False
            mark: str = process.environ().get("WALGATE_STACK", "")
        except (psutil.Error, OSError):
            return False
        return mark == str(self.folder) or mark.startswith(f"{self.folder}{os.sep}")


@contextmanager
def running_shop(options: DemoOptions, **environment: str) -> Iterator[Stack]:
    """Run the demo's stack while a block runs; keywords are variables of Dagster's processes.

    Dagster's processes get no setting of this test run.
    """
    kept = dict(os.environ)
    never = threading.Event()
    try:
        for name in [name for name in os.environ if name.startswith("WALGATE_")]:
            del os.environ[name]
        os.environ.update(environment)
        with running_stack(options, make_quiet_show(), stop=never, hurry=never) as stack:
            yield stack
    finally:
        os.environ.clear()
        os.environ.update(kept)


def make_quiet_show() -> Show:
    """Make a demo's output that nobody reads."""
    return Show(io.StringIO(), steps=STEPS)
