"""What two sides of a comparison agree on: how values are written, which ranges, what a range is.

Both sides write each row as one text: for each column the text's length in bytes, a colon and the
text; a colon alone for NULL. A range is known by how many rows it has and by the exclusive or of
the first 128 bits of their texts' SHA-256, which knows no order. Keys make rows differ, so that no
two rows of a table cancel one another.

A row's place in the ranges is its ordinal: the key itself where that is one integer, the first 60
bits of a uuid, and elsewhere 28 bits of the key text's hash, for no two systems sort texts alike.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UUID_DIGITS, HASH_DIGITS = 15, 7
_DIGEST_MASK = (1 << 64) - 1


class CanonicalForm(StrEnum):
    """How a value is written: as PostgreSQL writes it, or a float by the number that its bits are.

    Of a column that the settings hash only whether it is there can be compared.
    """

    TEXT = "text"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    FLOAT4_ARRAY = "float4[]"
    FLOAT8_ARRAY = "float8[]"
    PRESENCE = "presence"


class Ordering(StrEnum):
    """What a row's ordinal is."""

    INTEGER = "integer"
    UUID = "uuid"
    HASH = "hash"

    @property
    def span(self) -> tuple[int, int] | None:
        """The least and the greatest ordinal; None where the table's own keys bound it."""
        match self:
            case Ordering.INTEGER:
                return None
            case Ordering.UUID:
                return 0, (1 << 4 * UUID_DIGITS) - 1
            case Ordering.HASH:
                return 0, (1 << 4 * HASH_DIGITS) - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """The columns that are compared, by the source's names, and what identifies a row."""

    columns: tuple[tuple[str, CanonicalForm], ...]
    key: tuple[str, ...]
    ordering: Ordering


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The ordinals from `low` to below `high`; None where there is no bound.

    Rows without an ordinal are in the part without an upper bound.
    """

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class RangeSum:
    """Rows, their checksum in two halves of 64 bits each, and how many have a hole.

    `low` and `high` are the least and the greatest ordinal, None without one.
    """

    rows: int = 0
    first: int = 0
    second: int = 0
    low: int | None = None
    high: int | None = None
    holes: int = 0

    @property
    def checksum(self) -> str:
        """In hexadecimal."""
        return f"{self.first & _DIGEST_MASK:016x}{self.second & _DIGEST_MASK:016x}"

    def add(self, other: RangeSum) -> RangeSum:
        """Both together."""
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return RangeSum(
            self.rows + other.rows,
            self.first ^ other.first,
            self.second ^ other.second,
            min(lows, default=None),
            max(highs, default=None),
            self.holes + other.holes,
        )

    def equals(self, other: RangeSum) -> bool:
        """Whether the same rows gave both."""
        return (self.rows, self.checksum) == (other.rows, other.checksum)


# By number, which is an ordinal divided by the width of the ranges; None without an ordinal.
RangeSums = Mapping[int | None, RangeSum]


@dataclass(frozen=True, slots=True)
class Difference:
    """A range of ordinals that is not equal; no range of rows without an ordinal."""

    part: Part | None
    source: RangeSum
    lake: RangeSum

    @property
    def rows(self) -> int:
        """The rows of the side that has more."""
        return max(self.source.rows, self.lake.rows)

    @property
    def filled(self) -> Part | None:
        """The part of it in which there are rows, so that uneven keys are narrowed at once."""
        both = self.source.add(self.lake)
        if self.part is None or both.low is None or both.high is None:
            return None
        return Part(both.low, both.high + 1)


def add_up(sums: RangeSums) -> RangeSum:
    """All ranges together."""
    total = RangeSum()
    for one in sums.values():
        total = total.add(one)
    return total


def find_differences(
    source: RangeSums, lake: RangeSums, width: int, within: Part
) -> list[Difference]:
    """The ranges that are not equal, in order; none reaches beyond the part."""
    empty = RangeSum()
    numbers = sorted({*source, *lake}, key=lambda number: (number is None, number))
    return [
        Difference(part_of(number, width, within), one, other)
        for number in numbers
        if not (one := source.get(number, empty)).equals(other := lake.get(number, empty))
    ]


def part_of(number: int | None, width: int, within: Part) -> Part | None:
    """The ordinals that, divided by a width and cut towards zero, give a number."""
    if number is None:
        return None
    low = number * width if number > 0 else (number - 1) * width + 1
    high = (number + 1) * width if number >= 0 else number * width + 1
    if within.low is not None:
        low = max(low, within.low)
    return Part(low, high if within.high is None else min(high, within.high))


def choose_width(span: tuple[int, int] | None, rows: int, range_rows: int, most: int) -> int:
    """How wide ranges of about so many rows are; there are at most so many ranges."""
    if span is None:
        return 1
    ranges = min(most, max(1, -(-rows // range_rows)))
    return max(1, -(-(span[1] - span[0] + 1) // ranges))
