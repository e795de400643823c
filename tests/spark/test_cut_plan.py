"""What a cut names, by itself: no Spark, no lake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_core.vocabulary import Lsn
from spark_jobs.cut_plan import ORIGIN, Place, name_places, needs_fold
from spark_jobs.lake import Bound


def bound(lsn: int, epoch: int = 1) -> Bound:
    return Bound(epoch, Lsn(lsn))


BOUNDS = st.builds(bound, st.integers(0, 9), st.integers(1, 2))
PLACES = st.dictionaries(st.sampled_from("abcd"), st.builds(Place, BOUNDS, st.integers(0, 9)))


def test_a_merged_table_is_named_where_it_is() -> None:
    named = name_places(
        bound(5), {"a": Place(bound(3), 1)}, {"a": Place(bound(5), 2)}, waiting={"a"}
    )
    assert named == {"a": Place(bound(5), 2)}


def test_a_table_with_no_change_is_merged_through_the_cut() -> None:
    assert name_places(bound(5), {"a": Place(bound(3), 1)}, {}, waiting=()) == {
        "a": Place(bound(5), 1)
    }


def test_a_table_that_was_left_out_stays_where_it_was() -> None:
    named = name_places(bound(5), {"a": Place(bound(3), 1)}, {}, waiting={"a", "b"})
    assert named == {"a": Place(bound(3), 1), "b": Place(ORIGIN, None)}


def test_a_table_beyond_the_cut_is_named_at_the_version_of_the_cut_before() -> None:
    reached = {"a": Place(bound(7), 2), "b": Place(bound(7), 0)}
    named = name_places(bound(5), {"a": Place(bound(3), 1)}, reached, waiting={"a", "b"})
    assert named == {"a": Place(bound(3), 1), "b": Place(ORIGIN, None)}


def test_a_newer_epoch_is_beyond_a_cut_of_an_older_one_whatever_its_lsn() -> None:
    reached = {"a": Place(bound(1, epoch=2), 2)}
    named = name_places(bound(5), {"a": Place(bound(3), 1)}, reached, waiting={"a"})
    assert named == {"a": Place(bound(3), 1)}


@given(cut=BOUNDS, before=PLACES, reached=PLACES, waiting=st.sets(st.sampled_from("abcde")))
def test_no_cut_names_a_place_above_itself(
    cut: Bound, before: dict[str, Place], reached: dict[str, Place], waiting: set[str]
) -> None:
    before = {table: place for table, place in before.items() if place.bound <= cut}
    named = name_places(cut, before, reached, waiting=waiting)
    assert named.keys() == before.keys() | reached.keys() | waiting
    assert all(place.bound <= cut for place in named.values())


def test_a_table_below_the_bound_is_folded_unless_it_is_halted() -> None:
    assert needs_fold(bound(3), bound(5), is_halted=False)
    assert not needs_fold(bound(3), bound(5), is_halted=True)
    assert not needs_fold(bound(5), bound(5), is_halted=False)
    assert needs_fold(bound(9), bound(1, epoch=2), is_halted=False)
