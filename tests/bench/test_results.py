from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.bench.backlog import Shape
from tests.bench.results import Drained, compare, sum_up
from tests.bench.table import (
    CLOSING,
    MERGES_CLOSING,
    MERGES_OPENING,
    OPENING,
    PAGE,
    RESULTS,
    format_merges,
    format_table,
    replace_tables,
)
from tests.requirement import report_missing


def drained(seconds: float, **more: Any) -> Drained:
    facts: dict[str, Any] = {"rows": 1000, "cpu_s": {"client": 0.004}, "peak_bytes": 3 << 20}
    return Drained(seconds=seconds, **(facts | more))


ROUNDS = [
    {"pg_recvlogical": drained(1.0), "staged": drained(2.0, commits_ms=(5, 9), rows_checked=1000)},
    {"pg_recvlogical": drained(4.0), "staged": drained(4.0, commits_ms=(6,), rows_checked=1000)},
    {"pg_recvlogical": drained(2.0), "staged": drained(5.0, commits_ms=(7,), rows_checked=1000)},
]


def test_a_ratio_is_to_the_reference_of_the_same_round() -> None:
    assert [compare(one["staged"], one) for one in ROUNDS] == [0.5, 1.0, 0.4]
    assert compare(ROUNDS[0]["staged"], {"staged": ROUNDS[0]["staged"]}) is None
    assert sum_up(ROUNDS)["staged"]["ratio"] == 0.5


def test_figures_are_summed_up_over_rounds() -> None:
    assert sum_up(ROUNDS)["staged"] == {
        "rows_s": [200, 250, 500],
        "ratio": 0.5,
        "cpu_us": {"client": 4.0, "jvm": None, "walsender": None},
        "peak_mb": 3,
        "commit_ms": [6, 9],
        "round_ms": None,
        "rows_checked": 1000,
    }


def test_the_table_replaces_what_stands_between_the_markers() -> None:
    results = {
        "date": "2026-01-01",
        "commit": "abc",
        "hardware": "one core",
        "shapes": {"100": sum_up(ROUNDS)},
        "ages": {"alone": {"p50_s": 0.51, "p95_s": 1.0}},
        "merges": {
            "date": "2026-01-02",
            "commit": "abd",
            "cases": {"1 row": {"seconds": [0.1, 0.2, 0.3], "cpu_s": 0.4}},
        },
    }
    old = f"{OPENING}\nold\n{CLOSING}\nbetween\n{MERGES_OPENING}\nold\n{MERGES_CLOSING}"
    replaced = replace_tables(f"before\n{old}\nafter\n", results)
    assert replaced == (
        f"before\n{OPENING}\n{format_table(results)}\n{CLOSING}\nbetween\n"
        f"{MERGES_OPENING}\n{format_merges(results)}\n{MERGES_CLOSING}\nafter\n"
    )
    assert "2026-01-02, commit abd" in replaced
    assert "| 1 row | 0.20 (0.10, 0.30) | 0.40 |" in replaced
    assert "| 100 | receive, stage | 250 (200, 500) | 0.50 | 4.00 |" in replaced
    assert "from its commit: alone p50 0.5 s and p95 1.0 s." in replaced
    with pytest.raises(AssertionError, match="the page has no"):
        replace_tables("before", results)


@pytest.mark.parametrize("per_transaction", [1, 100, 10_000])
def test_the_changes_of_a_shape_are_those_of_every_key_in_turn(per_transaction: int) -> None:
    shape = Shape(100_000, per_transaction)
    counts = shape.count()
    assert {name: count for name, (count, _) in counts.items()} == {
        "insert": 70_000,
        "update": 20_000,
        "delete": 10_000,
    }
    assert counts["insert"][1] == sum(range(20_001, 90_001))
    # Every even key of the rows that were there, and every odd one twice.
    assert counts["delete"][1] == sum(range(2, 20_001, 2))
    assert counts["update"][1] == 2 * sum(range(1, 20_001, 2))


def test_the_page_shows_the_newest_results() -> None:
    if not RESULTS.exists():
        report_missing("bench/results.json", "run `make bench`")
    results = json.loads(RESULTS.read_text())
    assert set(results) == {"date", "commit", "hardware", "shapes", "ages", "merges"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", results["date"])
    page = PAGE.read_text()
    assert replace_tables(page, results) == page, "run `python -m tests.bench.table`"
