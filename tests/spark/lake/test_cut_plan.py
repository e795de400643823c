"""What a cut names, by itself: no Spark, no lake."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdc_core.vocabulary import Lsn
from spark_jobs.lake.cut_plan import (
    ORIGIN,
    FoundTable,
    Origin,
    Place,
    find_age,
    find_origin,
    name_places,
    needs_fold,
)
from spark_jobs.lake.lake import Bound


def bound(lsn: int, epoch: int = 1) -> Bound:
    return Bound(epoch, Lsn(lsn))


BOUNDS = st.builds(bound, st.integers(0, 9), st.integers(1, 2))
PLACES = st.dictionaries(st.sampled_from("abcd"), st.builds(Place, BOUNDS, st.integers(0, 9)))


def test_a_merged_table_is_named_where_it_is() -> None:
    named = name_places(
        bound(5),
        {"a": Place(bound(3), 1)},
        {"a": Place(bound(5), 2)},
        waiting={"a"},
        previous=bound(3),
    )
    assert named == {"a": Place(bound(5), 2)}


def test_a_table_with_no_change_is_merged_through_the_cut() -> None:
    assert name_places(bound(5), {"a": Place(bound(3), 1)}, {}, waiting=(), previous=bound(3)) == {
        "a": Place(bound(5), 1)
    }


def test_a_table_that_was_left_out_stays_where_it_was() -> None:
    """The cut before does not name b, so b had no change up to there."""
    named = name_places(
        bound(5), {"a": Place(bound(3), 1)}, {}, waiting={"a", "b"}, previous=bound(4)
    )
    assert named == {"a": Place(bound(3), 1), "b": Place(bound(4), None)}


def test_a_table_beyond_the_cut_is_named_at_the_version_of_the_cut_before() -> None:
    reached = {"a": Place(bound(7), 2), "b": Place(bound(7), 0)}
    named = name_places(
        bound(5), {"a": Place(bound(3), 1)}, reached, waiting={"a", "b"}, previous=None
    )
    assert named == {"a": Place(bound(3), 1), "b": Place(ORIGIN, None)}


def test_a_newer_epoch_is_beyond_a_cut_of_an_older_one_whatever_its_lsn() -> None:
    reached = {"a": Place(bound(1, epoch=2), 2)}
    named = name_places(
        bound(5), {"a": Place(bound(3), 1)}, reached, waiting={"a"}, previous=bound(3)
    )
    assert named == {"a": Place(bound(3), 1)}


@given(cut=BOUNDS, before=PLACES, reached=PLACES, waiting=st.sets(st.sampled_from("abcde")))
def test_no_cut_names_a_place_above_itself(
    cut: Bound, before: dict[str, Place], reached: dict[str, Place], waiting: set[str]
) -> None:
    before = {table: place for table, place in before.items() if place.bound <= cut}
    named = name_places(cut, before, reached, waiting=waiting, previous=None)
    assert named.keys() == before.keys() | reached.keys() | waiting
    assert all(place.bound <= cut for place in named.values())


def test_a_table_below_the_bound_is_folded_unless_it_is_halted() -> None:
    assert needs_fold(bound(3), bound(5), is_halted=False)
    assert not needs_fold(bound(3), bound(5), is_halted=True)
    assert not needs_fold(bound(5), bound(5), is_halted=False)
    assert needs_fold(bound(9), bound(1, epoch=2), is_halted=False)


def test_a_table_is_older_than_its_cut_by_folder_version_or_bound() -> None:
    place = Place(bound(5), 3, bound(4))
    assert find_age(None, None) is None
    assert find_age(Place(bound(5), None), None) is None
    assert find_age(place, FoundTable(3, bound(4))) is None
    assert find_age(place, FoundTable(7, bound(9))) is None
    assert "its folder is gone" in str(find_age(place, None))
    assert "at version 2" in str(find_age(place, FoundTable(2, bound(4))))
    assert "it has merged LSN 0/3" in str(find_age(place, FoundTable(9, bound(3))))
    assert "it has no merged LSN" in str(find_age(place, FoundTable(9, None)))


def test_a_table_goes_on_from_the_further_of_its_own_bound_and_the_cut_s() -> None:
    def find(place: Place | None, found: FoundTable | None) -> Origin:
        return find_origin(
            place, found, is_halted=False, log_begins=bound(1), first_cut=bound(1), trimmed=None
        )

    assert find(None, None) == Origin(None, None)
    assert find(Place(bound(5), 3, bound(4)), FoundTable(3, bound(4))) == Origin(bound(5), None)
    assert find(Place(bound(5), 3, bound(4)), FoundTable(4, bound(6))) == Origin(bound(6), None)


def test_an_older_table_goes_on_from_what_is_there_and_what_the_log_lacks_is_read() -> None:
    def find(
        found: FoundTable | None, log_begins: int | None, *, is_halted: bool = False
    ) -> Origin:
        begins = None if log_begins is None else bound(log_begins)
        return find_origin(
            Place(bound(5), 3, bound(4)),
            found,
            is_halted=is_halted,
            log_begins=begins,
            first_cut=bound(2),
            trimmed=None,
        )

    assert find(FoundTable(2, bound(3)), 1) == Origin(bound(3), None)
    assert find(FoundTable(2, bound(3)), 4) == Origin(bound(3), bound(4))
    assert find(None, 1) == Origin(None, None)
    assert find(None, 3) == Origin(None, bound(3))
    assert find(None, None) == Origin(None, bound(5))
    assert find(None, 1, is_halted=True) == Origin(bound(5), bound(5))


def test_what_was_trimmed_from_the_log_is_read_again_and_nothing_else() -> None:
    def find(
        place: Place | None, found: FoundTable | None, trimmed: int, *, is_halted: bool = False
    ) -> Origin:
        return find_origin(
            place,
            found,
            is_halted=is_halted,
            log_begins=bound(8),
            first_cut=bound(9),
            trimmed=bound(trimmed),
        )

    whole, older = FoundTable(3, bound(4)), FoundTable(2, bound(3))
    place = Place(bound(5), 3, bound(4))
    # The cut says that the table has no change up to 5.
    assert find(place, whole, 5) == Origin(bound(5), None)
    assert find(place, whole, 6) == Origin(bound(5), bound(6))
    assert find(place, whole, 6, is_halted=True) == Origin(bound(5), None)
    assert find(place, older, 3) == Origin(bound(3), None)
    assert find(place, older, 4) == Origin(bound(3), bound(4))
    # A log that was trimmed no longer goes back to the first cut, whatever it begins with.
    assert find(place, None, 1) == Origin(None, bound(1))
    assert find(None, None, 1) == Origin(None, bound(1))
