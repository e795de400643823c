"""Compares one table in the source and in the lake at one LSN: range sums, then keys."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from pyspark.sql import DataFrame

from cdc_core.comparing import (
    Compared,
    Difference,
    OrdinalRange,
    RangeSums,
    find_differences,
)
from cdc_core.source import checksums
from cdc_core.source.chunks import estimate_size
from cdc_core.source.published_tables import PublishedTable
from cdc_core.source.snapshots import SourceSnapshot
from cdc_core.staging.verifications import FoundRange
from cdc_core.vocabulary import TableName
from spark_jobs.lake.damaged_tables import open_current
from spark_jobs.lake.lake import Lake, count_rows
from spark_jobs.modes.registry import find_mode
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.verification import checksums as verify

# A range with more rows than this is narrowed, to ranges of about half as many.
MAX_ROWS = 10_000
_AIM_ROWS = 5_000
# If more than this differs, a whole backfill heals the table, so no keys are listed.
_MAX_RANGES = 64
_MAX_LISTED = 500_000

Keys = frozenset[tuple[str | None, ...]]

_Row = tuple[int, tuple[str | None, ...], str]
_Left = TypeVar("_Left")
_Right = TypeVar("_Right")


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table in the source and in the lake, at one LSN."""

    snapshot: SourceSnapshot
    published: PublishedTable
    rows: DataFrame
    schema: TableSchema
    compared: Compared
    pool: ThreadPoolExecutor

    def sum_ranges(self, part: OrdinalRange, width: int) -> tuple[RangeSums, RangeSums]:
        """Sum up a part on both sides, in ranges of a width. Raises: SourceError."""
        return self._ask_both(
            lambda: checksums.sum_ranges(
                self.snapshot.connection, self.published, self.compared, part, width
            ),
            lambda: verify.sum_ranges(self.rows, self.schema, self.compared, part, width),
        )

    def sum_lake(self, part: OrdinalRange, width: int) -> RangeSums:
        """Sum up a part of the lake's rows only."""
        return verify.sum_ranges(self.rows, self.schema, self.compared, part, width)

    def narrow(
        self, differences: Sequence[Difference]
    ) -> tuple[tuple[FoundRange, ...], Keys | None]:
        """Narrow ranges that differ; return them, and the keys that differ.

        The keys are None if rows without an ordinal differ, or if ranges or rows are too many.
        Raises: SourceError.
        """
        found = list(differences)
        while len(found) <= _MAX_RANGES:
            wide = [one for one in found if one.rows > MAX_ROWS and _span(one.filled) > 1]
            if not wide:
                break
            found = [one for one in found if one not in wide]
            for one in wide:
                part = one.filled
                assert part is not None
                width = -(-_span(part) // -(-one.rows // _AIM_ROWS))
                found += find_differences(*self.sum_ranges(part, width), width, part)
        found.sort(key=lambda one: (one.part is None, (one.part and one.part.low) or 0))
        ranges = tuple(
            FoundRange(
                one.part or OrdinalRange(), one.source.rows, one.lake.rows, None, one.lake.holes
            )
            for one in found
        )
        listed = sum(one.source.rows + one.lake.rows for one in found)
        if any(one.part is None for one in found):
            return ranges, None
        if len(found) > _MAX_RANGES or listed > _MAX_LISTED:
            return ranges, None
        return self._find_keys(ranges)

    def _find_keys(self, ranges: tuple[FoundRange, ...]) -> tuple[tuple[FoundRange, ...], Keys]:
        """The ranges with the number of different keys in each, and these keys."""
        parts = [one.part for one in ranges]
        source, lake = self._ask_both(
            lambda: checksums.list_keys(
                self.snapshot.connection, self.published, self.compared, parts
            ),
            lambda: verify.list_keys(self.rows, self.schema, self.compared, parts),
        )
        here: Counter[_Row] = Counter(source)
        there: Counter[_Row] = Counter((row.ordinal, row.key, row.digest) for row in lake)
        different = {
            (ordinal, key) for ordinal, key, _ in [*(here - there).keys(), *(there - here).keys()]
        }
        lows = [part.low if part.low is not None else float("-inf") for part in parts]
        counts = Counter(bisect_right(lows, ordinal) - 1 for ordinal, _ in different)
        counted = tuple(
            FoundRange(one.part, one.source_rows, one.lake_rows, counts[i], one.holes)
            for i, one in enumerate(ranges)
        )
        return counted, frozenset(key for _, key in different)

    def _ask_both(
        self, source: Callable[[], _Left], lake: Callable[[], _Right]
    ) -> tuple[_Left, _Right]:
        asked = self.pool.submit(source)
        try:
            there = lake()
        except BaseException:
            # The connection runs one statement at a time, so end this one.
            self.snapshot.connection.cancel_safe()
            asked.exception()
            raise
        return asked.result(), there


def _span(part: OrdinalRange | None) -> int:
    """The number of ordinals in a part; 0 unless it has two bounds."""
    return 0 if part is None or part.low is None or part.high is None else part.high - part.low


def estimate_rows(lake: Lake, snapshot: SourceSnapshot, table: TableName) -> int:
    """About how many rows the larger side has; the source's count if the lake has deleted rows."""
    folder = lake.locate(table)
    delta = open_current(folder)
    estimated, _ = estimate_size(snapshot.connection, table)
    if delta is None or find_mode(delta).kept is not None:
        return estimated
    return max(estimated, count_rows(folder, delta))
