from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cdc_core.comparing import (
    Difference,
    Ordering,
    OrdinalRange,
    RangeSum,
    choose_width,
    find_differences,
    part_of,
)
from cdc_core.staging.verifications import (
    FoundRange,
    TableVerification,
    choose_kept_rows,
    find_table_verification,
    group_by_table,
)
from cdc_core.vocabulary import Lsn
from orchestration.verification.answer import describe_range

ALL = OrdinalRange()
START = datetime(2026, 1, 1, tzinfo=UTC)


def truncate(ordinal: int, width: int) -> int:
    """As PostgreSQL and Spark divide: towards zero."""
    return abs(ordinal) // width * (1 if ordinal >= 0 else -1)


def test_every_ordinal_is_in_the_range_of_its_number() -> None:
    for width in (1, 2, 3, 7):
        for ordinal in range(-30, 31):
            part = part_of(truncate(ordinal, width), width, ALL)
            assert part is not None
            assert part.low is not None
            assert part.high is not None
            assert part.low <= ordinal < part.high
            inside = {truncate(other, width) for other in range(part.low, part.high)}
            assert inside == {truncate(ordinal, width)}


def test_a_range_reaches_no_further_than_its_part() -> None:
    assert part_of(2, 10, OrdinalRange(25, 28)) == OrdinalRange(25, 28)
    assert part_of(0, 10, OrdinalRange(None, 5)) == OrdinalRange(-9, 5)
    assert part_of(None, 10, OrdinalRange(3, None)) is None


def test_a_difference_has_both_sides() -> None:
    one, other = RangeSum(2, 5, 6), RangeSum(2, 5, 7)
    found = find_differences({0: one, 1: one, 3: one}, {0: one, 1: other, None: other}, 10, ALL)
    assert found == [
        Difference(OrdinalRange(10, 20), one, other),
        Difference(OrdinalRange(30, 40), one, RangeSum()),
        Difference(None, RangeSum(), other),
    ]
    # A sign says nothing: both sides give the same 64 bits, as they like.
    assert RangeSum(1, -1, 0).equals(RangeSum(1, (1 << 64) - 1, 0))


def test_ranges_are_as_many_as_rows_ask_for() -> None:
    assert choose_width((1, 100), 100, 5000, 2048) == 100
    assert choose_width((1, 10_000_000), 10_000_000, 5000, 2048) == 5000
    assert choose_width((-(1 << 63), (1 << 63) - 1), 10**12, 5000, 16) == 1 << 60
    assert choose_width(None, 0, 5000, 2048) == 1


def row(
    minutes: int,
    part: OrdinalRange,
    result: str = "equal",
    ordering: str = "integer",
    epoch: int = 1,
) -> Any:
    return {
        "epoch": epoch,
        "lsn": 1000 + minutes,
        "at": START + timedelta(minutes=minutes),
        "result": result,
        "reason": None,
        "coverage": 0.3,
        "ordering": ordering,
        "from_ordinal": part.low,
        "to_ordinal": part.high,
    }


def stand(*rows: Any) -> TableVerification:
    return find_table_verification(sorted(rows, key=lambda row: row["at"], reverse=True))


def test_a_table_is_verified_through_its_oldest_part() -> None:
    first, second, third = OrdinalRange(None, 10), OrdinalRange(10, 20), OrdinalRange(20, None)
    whole = stand(row(1, first), row(2, second), row(3, third))
    assert (whole.lsn, whole.next_ordinal) == (Lsn(1001), None)
    later = stand(row(1, first), row(2, second), row(3, third), row(4, OrdinalRange(None, 12)))
    assert (later.lsn, later.next_ordinal) == (Lsn(1002), 12)
    assert later.since == row(2, second)["at"]
    assert stand(row(2, second), row(3, third)).lsn is None
    assert stand(row(1, ALL), row(2, second, "skipped")).lsn == Lsn(1001)


def test_a_part_that_differed_counts_until_it_is_equal() -> None:
    part = OrdinalRange(None, 10)
    assert stand(row(1, ALL), row(2, part, "different")).lsn is None
    assert stand(row(1, ALL, "different"), row(2, part)).lsn is None
    assert stand(row(1, ALL), row(2, part, "different"), row(3, part)).lsn == Lsn(1001)
    # Parts of a key that is another now cover nothing, nor do those of another epoch.
    assert stand(row(1, ALL), row(2, part, epoch=2)).lsn is None
    assert stand(row(1, ALL, ordering=Ordering.HASH), row(2, part)).lsn is None


@pytest.mark.parametrize("seed", range(20))
def test_old_results_that_are_dropped_change_no_state_now_or_later(seed: int) -> None:
    chance = random.Random(seed)
    limits = [None, 10, 20, 30, None]

    def make_row(number: int) -> Any:
        low, high = sorted(chance.sample(range(5), 2))
        part = OrdinalRange(limits[low], limits[high])
        result = chance.choice(["equal"] * 5 + ["different", "skipped"])
        ordering = chance.choice(["integer"] * 15 + ["hash"])
        found = row(chance.randrange(100), part, result, ordering, epoch=1 + number // 25)
        return found | {"table": "t", "number": number}

    whole: list[Any] = []
    kept: list[Any] = []
    for number in range(50):
        found = make_row(number)
        whole, kept = (group_by_table([*rows, found])["t"] for rows in (whole, kept))
        assert find_table_verification(kept) == find_table_verification(whole)
        before = START + timedelta(minutes=chance.randrange(150))
        young = [one for one in kept if one["at"] >= before]
        kept = choose_kept_rows(kept, before=before)
        assert all(one in kept for one in young)
    # Four parts, the row that ended the search, and the newest one.
    assert len(choose_kept_rows(whole, before=datetime.max.replace(tzinfo=UTC))) <= 6


def test_a_range_of_uuids_is_told_by_uuids() -> None:
    def tell(low: int | None, high: int | None) -> tuple[str | None, str | None]:
        told = describe_range(Ordering.UUID, FoundRange(OrdinalRange(low, high), 1, 1))
        return told["from"], told["to"]

    first, last = "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"
    assert tell(None, None) == (None, None)
    assert tell(0x123, 0x124) == (
        "00000000-0000-1230-0000-000000000000",
        "00000000-0000-123f-ffff-ffffffffffff",
    )
    # The first range and the last are wider than all uuids.
    assert tell(-(16**15) + 1, 16**15 + 5) == (first, last)
