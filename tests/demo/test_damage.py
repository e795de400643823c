"""The demo says that it healed what was damaged only where that, and nothing else, was found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc_core.staging.verifications import DIFFERENT, EQUAL, Verified
from cdc_core.vocabulary import Lsn, TableName
from orchestration.demo.damage import DAMAGED, DAMAGED_IDS, Healing
from orchestration.demo.invariants import list_whole_cuts
from orchestration.verification.healing import VerificationResult
from orchestration.verification.table_comparison import Keys
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import Cut, write_cut
from tests.lakes import locate_lake

FOUND: Keys = frozenset((str(number),) for number in DAMAGED_IDS)
OTHER = TableName("public", "orders")
LSN = Lsn(100)


def judge(keys: dict[TableName, Keys], result: str = EQUAL) -> bool:
    found = Verified(DAMAGED, 1, LSN, result, healed=True)
    return Healing(VerificationResult(LSN, (found,), keys)).is_whole


def test_just_what_was_damaged_is_found_and_equal_since() -> None:
    assert judge({DAMAGED: FOUND})


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {DAMAGED: frozenset(sorted(FOUND)[1:])},
        {DAMAGED: FOUND | {("17",)}},
        {DAMAGED: FOUND, OTHER: frozenset({("17",)})},
        {OTHER: FOUND},
    ],
)
def test_less_or_more_than_was_damaged_is_no_healing(keys: dict[TableName, Keys]) -> None:
    assert not judge(keys)


def test_what_still_differs_is_no_healing() -> None:
    assert not judge({DAMAGED: FOUND}, DIFFERENT)


def test_only_cuts_that_have_every_table_whole_are_checked(tmp_path: Path) -> None:
    lake, now = Lake(locate_lake(tmp_path / "lake")), datetime.now(UTC)
    both = {str(DAMAGED): 1, str(OTHER): 1}
    whole = Cut(Bound(1, Lsn(40)), now, now, "run", versions=both)
    assert list_whole_cuts(lake, [DAMAGED, OTHER]) == []
    for cut in (
        replace(whole, bound=Bound(1, Lsn(10)), versions={str(DAMAGED): 1}),
        replace(whole, bound=Bound(1, Lsn(20)), partial=(str(OTHER),)),
        replace(whole, bound=Bound(1, Lsn(30)), partial=("public.elsewhere",)),
        whole,
        whole,
    ):
        write_cut(lake, cut)
    assert list_whole_cuts(lake, [DAMAGED, OTHER]) == [Bound(1, Lsn(30)), Bound(1, Lsn(40))]
