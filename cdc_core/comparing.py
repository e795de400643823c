"""What both sides of a comparison agree on: texts of values, ranges of rows, sums of ranges.

Each side writes a row as one text: for each column, the length of the value's text in bytes, a
colon and the value's text. For NULL, it writes only the colon. The sum of a range is its number of
rows and the exclusive or of the first 128 bits of the SHA-256 of each row's text. The exclusive or
does not depend on the order of rows. No two rows of a table have the same key, so no two rows
cancel each other.

A row's place in the ranges is its ordinal. If the key is one integer, the ordinal is the key. If
the key is one uuid, the ordinal is its first 60 bits. For all other keys, the ordinal is 28 bits of
the hash of the key's text, because no two systems sort texts alike.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

UUID_DIGITS, HASH_DIGITS = 15, 7
_DIGEST_MASK = (1 << 64) - 1


class CanonicalForm(StrEnum):
    """How a value is written as text.

    `TEXT` is the text that PostgreSQL writes. The float forms write a float as the number that its
    bits are. `PRESENCE` is the form of a column that the settings hash: it shows only whether a
    value is NULL.
    """

    TEXT = "text"
    FLOAT4 = "float4"
    FLOAT8 = "float8"
    FLOAT4_ARRAY = "float4[]"
    FLOAT8_ARRAY = "float8[]"
    PRESENCE = "presence"


class Ordering(StrEnum):
    """What a row's ordinal is made of."""

    INTEGER = "integer"
    UUID = "uuid"
    HASH = "hash"

    @property
    def span(self) -> tuple[int, int] | None:
        """The least and the greatest ordinal; None if they depend on the keys of the table."""
        match self:
            case Ordering.INTEGER:
                return None
            case Ordering.UUID:
                return 0, (1 << 4 * UUID_DIGITS) - 1
            case Ordering.HASH:
                return 0, (1 << 4 * HASH_DIGITS) - 1


@dataclass(frozen=True, slots=True)
class Compared:
    """The compared columns and the key columns, by the source's names, and the kind of ordinal."""

    columns: tuple[tuple[str, CanonicalForm], ...]
    key: tuple[str, ...]
    ordering: Ordering


@dataclass(frozen=True, slots=True, order=True)
class OrdinalRange:
    """The ordinals from `low` to below `high`; None means no bound.

    Rows without an ordinal are in the part without an upper bound.
    """

    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class RangeSum:
    """The number of rows of a range, and their checksum in two halves of 64 bits.

    `low` and `high` are the least and the greatest ordinal; None if no row has an ordinal.
    `holes` is the number of rows with a missing value.
    """

    rows: int = 0
    first: int = 0
    second: int = 0
    low: int | None = None
    high: int | None = None
    holes: int = 0

    @property
    def checksum(self) -> str:
        """The checksum in hexadecimal."""
        return f"{self.first & _DIGEST_MASK:016x}{self.second & _DIGEST_MASK:016x}"

    def add(self, other: RangeSum) -> RangeSum:
        """The sum of both ranges."""
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
        """Whether both have the same number of rows and the same checksum."""
        return (self.rows, self.checksum) == (other.rows, other.checksum)


# By the number of the range: an ordinal divided by the width. None: rows without an ordinal.
RangeSums = Mapping[int | None, RangeSum]


@dataclass(frozen=True, slots=True)
class Difference:
    """A range that is not equal. `part` is None for the rows without an ordinal."""

    part: OrdinalRange | None
    source: RangeSum
    lake: RangeSum

    @property
    def rows(self) -> int:
        """The number of rows on the side that has more."""
        return max(self.source.rows, self.lake.rows)

    @property
    def filled(self) -> OrdinalRange | None:
        """The part from the least to the greatest ordinal that a row has; None without ordinals.

        It lets a comparison leave out at once the ordinals that no row has.
        """
        both = self.source.add(self.lake)
        if self.part is None or both.low is None or both.high is None:
            return None
        return OrdinalRange(both.low, both.high + 1)


def add_up(sums: RangeSums) -> RangeSum:
    """The sum of all ranges."""
    total = RangeSum()
    for one in sums.values():
        total = total.add(one)
    return total


def find_differences(
    source: RangeSums, lake: RangeSums, width: int, within: OrdinalRange
) -> list[Difference]:
    """The ranges that are not equal, in order, each cut at the bounds of `within`."""
    empty = RangeSum()
    numbers = sorted({*source, *lake}, key=lambda number: (number is None, number))
    return [
        Difference(part_of(number, width, within), one, other)
        for number in numbers
        if not (one := source.get(number, empty)).equals(other := lake.get(number, empty))
    ]


def part_of(number: int | None, width: int, within: OrdinalRange) -> OrdinalRange | None:
    """The part of `within` whose ordinals, divided by `width` and truncated, give `number`.

    None if `number` is None.
    """
    if number is None:
        return None
    low = number * width if number > 0 else (number - 1) * width + 1
    high = (number + 1) * width if number >= 0 else number * width + 1
    if within.low is not None:
        low = max(low, within.low)
    return OrdinalRange(low, high if within.high is None else min(high, within.high))


def choose_width(span: tuple[int, int] | None, rows: int, range_rows: int, most: int) -> int:
    """The width in ordinals of ranges that have about `range_rows` rows each.

    `most` ranges of this width are long enough for `span`. 1 if `span` is None.
    """
    if span is None:
        return 1
    ranges = min(most, max(1, -(-rows // range_rows)))
    return max(1, -(-(span[1] - span[0] + 1) // ranges))
