"""The command `walgate` as a real process, and what it said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEADLINE_S = 120.0
REPOSITORY = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def complaints(self) -> list[str]:
        """The lines of standard error that are the command's own, without the log."""
        return [
            line.removeprefix("walgate: ")
            for line in self.stderr.splitlines()
            if line.startswith("walgate: ")
        ]


def walgate_command(*arguments: str | Path) -> list[str]:
    """Give the command line that runs this checkout."""
    return [sys.executable, "-m", "orchestration.cli.main", *map(str, arguments)]


def walgate_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give our environment without anyone else's settings for Walgate or libpq."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PG", "WALGATE_"))
    }
    return kept | {"PYTHONPATH": str(REPOSITORY)} | dict(extra or {})


def run_walgate(
    *arguments: str | Path,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Answer:
    """Run a command in a folder to its end."""
    finished = subprocess.run(
        walgate_command(*arguments),
        cwd=folder,
        env=walgate_environment(environment),
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )
    return Answer(finished.returncode, finished.stdout, finished.stderr)
