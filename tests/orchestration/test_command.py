"""The command itself, whatever it is asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.walgate_command import walgate_command, walgate_environment


def test_a_reader_that_leaves_early_is_no_failure(tmp_path: Path) -> None:
    command = subprocess.Popen(
        walgate_command("--help"),
        cwd=tmp_path,
        env=walgate_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert command.stdout is not None
    command.stdout.close()
    command.stdout = None
    _, complaints = command.communicate(timeout=60)
    assert (command.returncode, complaints) == (0, b"")
