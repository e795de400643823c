"""A capture until current, in a process of its own, that writes down how it went.

`python -m tests.bench.capture CONFIG SINK ANSWER`, SINK being `null` or `staging`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from pathlib import Path

from cdc_core.capture.loop import RunLimit
from cdc_core.capture.run import run_capture
from cdc_core.settings import load_settings
from tests.bench.null_log import NullLog


class CommitTimes(logging.Handler):
    """Keeps how long each batch took from columns to the commit's return."""

    def __init__(self) -> None:
        """Listen to what capture says of its batches."""
        super().__init__(logging.DEBUG)
        self.ms: list[int] = []
        logger = logging.getLogger("walgate.capture")
        logger.setLevel(logging.DEBUG)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the time of a staged batch."""
        if record.getMessage() == "batch staged":
            self.ms.append(vars(record)["fields"]["ms"])


def main(config: Path, sink: str, answer: Path) -> None:
    """Drain the slot."""
    settings = load_settings(config, {})
    log = NullLog(config.parent)
    commits = CommitTimes()
    bound = RunLimit(threading.Event(), until_current=True)
    if sink == "null":
        run_capture(settings, bound, open_log=lambda _: log)
    else:
        run_capture(settings, bound)
    # The clock is the machine's: the process that measures reads the same.
    ended = {
        "at": time.monotonic(),
        "commits_ms": commits.ms,
        "entries": log.entries,
        "peak_bytes": _read_peak(),
    }
    answer.write_text(json.dumps(ended))


def _read_peak() -> int:
    """Peak memory in bytes. Not `ru_maxrss`: that begins with what the parent had."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
