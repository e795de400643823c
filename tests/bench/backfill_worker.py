"""A backfill of the bench's table in a process of its own, that writes down how long it took.

`python -m tests.bench.backfill_worker CONFIG ANSWER`; it waits for a line on its standard input, so
that starting it counts for nothing.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills


def main(config: Path, answer: Path) -> None:
    """Read the whole table."""
    settings = load_settings(config, {})
    answer.with_suffix(".ready").touch()
    sys.stdin.readline()
    table = TableName("public", "bench")
    started = time.monotonic()
    done = run_backfills(
        settings,
        [table],
        chunk_rows=settings.backfill.chunk_rows,
        parallel=settings.backfill.parallel,
        stop=threading.Event(),
    )
    ended = {"seconds": time.monotonic() - started, "rows": done[table].rows}
    answer.write_text(json.dumps(ended))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
