"""Figures of drains, summed up as `bench/results.json` has them. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

REFERENCE = "pg_recvlogical"
NULL, STAGED, CURRENT, BOTH = "null", "staged", "current", "both"
SYSTEMS = (REFERENCE, NULL, STAGED, CURRENT, BOTH)
# Those that bring in what is there already.
COPY, READ, TABLE = "copy", "backfill", "backfill_merged"
BACKFILL = "backfill"
_ORDER = (*SYSTEMS, COPY, READ, TABLE)


@dataclass(frozen=True, slots=True)
class Drained:
    """One drain of a backlog: times, CPU seconds by process, and the rows found to be right."""

    rows: int
    seconds: float
    cpu_s: Mapping[str, float]
    peak_bytes: int
    commits_ms: tuple[float, ...] = ()
    rounds_ms: tuple[float, ...] = ()
    rows_checked: int | None = None

    @property
    def rows_s(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds

    def cpu_us(self, process: str) -> float | None:
        """CPU microseconds a row; None where the process has no part in it."""
        seconds = self.cpu_s.get(process)
        return None if seconds is None else 1e6 * seconds / self.rows


# What each system did in one round.
Round = Mapping[str, Drained]


def sum_up(rounds: Sequence[Round]) -> dict[str, Any]:
    """Give the figures of each system of a shape, all rounds having the same systems."""
    return {system: _sum_up_system(system, rounds) for system in _ORDER if system in rounds[0]}


def compare(drained: Drained, in_round: Round) -> float | None:
    """How many times as fast as the reference of the same round."""
    reference = in_round.get(REFERENCE) or in_round.get(COPY)
    return None if reference is None else drained.rows_s / reference.rows_s


def _sum_up_system(system: str, rounds: Sequence[Round]) -> dict[str, Any]:
    drains = [one[system] for one in rounds]
    speeds = [drained.rows_s for drained in drains]
    ratios = [compare(one[system], one) for one in rounds]
    checked = [drained.rows_checked for drained in drains if drained.rows_checked is not None]
    return {
        "rows_s": [round(pick(speeds)) for pick in (min, statistics.median, max)],
        "ratio": _middle(ratios),
        "cpu_us": {
            process: _middle([drained.cpu_us(process) for drained in drains])
            for process in ("client", "jvm", "walsender")
        },
        "peak_mb": round(max(drained.peak_bytes for drained in drains) / (1 << 20)),
        "commit_ms": _spread([ms for drained in drains for ms in drained.commits_ms]),
        "round_ms": _spread([ms for drained in drains for ms in drained.rounds_ms]),
        "rows_checked": min(checked, default=None),
    }


def _middle(figures: Sequence[float | None]) -> float | None:
    """The median, of two decimals; None where nothing was measured."""
    measured = [figure for figure in figures if figure is not None]
    return round(statistics.median(measured), 2) if measured else None


def _spread(times_ms: Sequence[float]) -> list[int] | None:
    """Median and maximum; None where there was none."""
    return [round(statistics.median(times_ms)), round(max(times_ms))] if times_ms else None
