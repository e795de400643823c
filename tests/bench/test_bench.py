from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.results import SYSTEMS
from tests.fix_spark import STATE_FOLDER, find_java
from tests.postgres_server import find_binaries
from tests.requirement import report_missing
from tests.walgate_command import REPOSITORY, walgate_environment

DEADLINE_S = 580.0


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_every_system_drains_a_small_backlog(tmp_path: Path) -> None:
    if find_binaries(18) is None or find_java() is None or not (STATE_FOLDER / "jars").is_dir():
        report_missing("PostgreSQL 18, Java or the Delta JARs", "run `make setup`")
    output = tmp_path / "folder" / "results.json"
    command = [sys.executable, "-m", "tests.bench", "--output", str(output)]
    finished = subprocess.run(
        [
            *command,
            *("--shapes", "10", "--rows", "3000", "--rounds", "0"),
            *("--backfill-rows", "5000", "--merge-rows", "15000"),
        ],
        cwd=REPOSITORY,
        env=walgate_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    results = json.loads(output.read_text())
    figures = results["shapes"]["10"]
    assert tuple(figures) == SYSTEMS
    checked = [figures[system]["rows_checked"] for system in SYSTEMS]
    # 600 rows were there before; 2,100 came and 300 went.
    assert checked == [None, 3000, 3000, 2400, 2400]
    assert figures["pg_recvlogical"]["ratio"] == 1
    assert figures["both"]["commit_ms"]
    assert figures["both"]["round_ms"]
    assert all(figures[system]["rows_s"][0] > 0 for system in SYSTEMS)
    brought = results["shapes"]["backfill"]
    assert [figures["rows_checked"] for figures in brought.values()] == [None, 5000, 5000]
    beside = {"beside a backfill", "beside a backfill and its merge"}
    assert set(results["ages"]) == {"alone"} | beside
    assert all(age["transactions"] > 0 for age in results["ages"].values())
    cases = results["merges"]["cases"]
    assert [name.split()[0] for name in cases] == ["1", "4,000", "5,000", "10,000", "10,000"]
    assert all(case["seconds"][0] > 0 for case in cases.values())
