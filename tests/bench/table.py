"""The tables of results in docs/performance.md; `python -m tests.bench.table` writes them there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.walgate_command import REPOSITORY

RESULTS = REPOSITORY / "bench" / "results.json"
PAGE = REPOSITORY / "docs" / "performance.md"
OPENING, CLOSING = "<!-- bench -->", "<!-- end of bench -->"
MERGES_OPENING, MERGES_CLOSING = "<!-- merges -->", "<!-- end of merges -->"
_MERGE_HEADINGS = ("changes of one round", "s: median (min, max)", "s of CPU")
_NAMES = {
    "pg_recvlogical": "`pg_recvlogical` to /dev/null",
    "null": "receive, drop",
    "staged": "receive, stage",
    "current": "merge what is staged",
    "both": "receive, stage, merge",
    "copy": "`COPY … TO STDOUT` to /dev/null",
    "backfill": "backfill: read, stage",
    "backfill_merged": "backfill: read, stage, merge",
}
_HEADINGS = (
    "rows/tx",
    "what",
    "rows/s: median (min, max)",
    "ratio",
    "client",
    "JVM",
    "walsender",
    "peak MB",
    "commit ms",
    "round s",
    "rows checked",
)


def format_table(results: Mapping[str, Any]) -> str:
    """Give results of drains as markdown, with date, commit and hardware."""
    lines = [
        f"{results['date']}, commit {results['commit']}: {results['hardware']}.",
        "",
        _join(_HEADINGS),
        _join(["--:", "---", *["--:"] * (len(_HEADINGS) - 2)]),
    ]
    for shape, systems in results["shapes"].items():
        size = f"{int(shape):,}" if shape.isdigit() else ""
        lines += [_join([size, *_cells(name, figures)]) for name, figures in systems.items()]
    ages = [
        f"{name} p50 {age['p50_s']:.1f} s and p95 {age['p95_s']:.1f} s"
        for name, age in results["ages"].items()
    ]
    if ages:
        lines += ["", f"A change at `live`, from its commit: {', '.join(ages)}."]
    return "\n".join(lines)


def format_merges(results: Mapping[str, Any]) -> str:
    """Give results of merges as markdown."""
    merges = results["merges"]
    lines = [
        f"{merges['date']}, commit {merges['commit']}, on the machine of [Backlog](#backlog).",
        "",
        _join(_MERGE_HEADINGS),
        _join(["---", "--:", "--:"]),
    ]
    for name, figures in merges["cases"].items():
        least, middle, most = figures["seconds"]
        cells = [name, f"{middle:.2f} ({least:.2f}, {most:.2f})", f"{figures['cpu_s']:.2f}"]
        lines.append(_join(cells))
    return "\n".join(lines)


def replace_tables(page: str, results: Mapping[str, Any]) -> str:
    """Give the page with the tables of these results between their markers."""
    page = _replace(page, format_table(results), OPENING, CLOSING)
    return _replace(page, format_merges(results), MERGES_OPENING, MERGES_CLOSING)


def _replace(page: str, table: str, opening: str, closing: str) -> str:
    before, begun, rest = page.partition(opening)
    _, ended, after = rest.partition(closing)
    assert begun, f"the page has no {opening}"
    assert ended, f"the page has no {closing}"
    return f"{before}{opening}\n{table}\n{closing}{after}"


def _cells(system: str, figures: Mapping[str, Any]) -> list[str]:
    least, middle, most = figures["rows_s"]
    cpu = figures["cpu_us"]
    return [
        _NAMES[system],
        f"{middle:,} ({least:,}, {most:,})",
        _show(figures["ratio"]),
        *(_show(cpu[process]) for process in ("client", "jvm", "walsender")),
        f"{figures['peak_mb']:,}",
        _show_spread(figures["commit_ms"], 1, 0),
        _show_spread(figures["round_ms"], 1000, 1),
        "" if figures["rows_checked"] is None else f"{figures['rows_checked']:,}",
    ]


def _show(figure: float | None) -> str:
    return "" if figure is None else f"{figure:.2f}"


def _show_spread(times_ms: Sequence[int] | None, unit_ms: int, decimals: int) -> str:
    if times_ms is None:
        return ""
    return " / ".join(f"{ms / unit_ms:,.{decimals}f}" for ms in times_ms)


def _join(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def refresh_page() -> None:
    """Put the newest results into the page."""
    PAGE.write_text(replace_tables(PAGE.read_text(), json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    refresh_page()
