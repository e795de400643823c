"""The columns of a target of entries follow the source's table; no Spark."""

from __future__ import annotations

from dataclasses import replace

from cdc_core.vocabulary import Relation
from spark_jobs.append.shape import EntryShape, follow
from spark_jobs.schema.evolution import Halt, choose_own
from tests.spark.relations import make_relation

T = make_relation("t", "k int4, a text, b int4")


def walk(*relations: Relation) -> EntryShape:
    """The shape after some announcements."""
    shape: EntryShape | None = None
    for relation in relations:
        followed = follow(shape, relation, choose_own)
        assert isinstance(followed, EntryShape), followed
        shape = followed
    assert shape is not None
    return shape


def alter(
    relation: Relation, *columns: str, attnums: list[int], left_out: tuple[int, ...] = ()
) -> Relation:
    """A relation with other columns, by `name type`, and their attnums."""
    made = make_relation("t", ", ".join(columns))
    numbered = [replace(c, attnum=n) for c, n in zip(made.columns, attnums, strict=True)]
    return replace(relation, columns=tuple(numbered), left_out=left_out)


def test_a_renamed_column_goes_on_and_a_dropped_one_stays() -> None:
    renamed = alter(T, "k int4", "c text", "b int4", attnums=[1, 2, 3])
    dropped = alter(T, "k int4", "c text", "d text", attnums=[1, 2, 4])
    shape = walk(T, renamed, dropped)
    assert shape.schema.names == ("k", "c", "b", "d")
    assert [shape.places[one.version] for one in (T, renamed, dropped)] == [
        (0, 1, 2), (0, 1, 2), (0, 1, 3)
    ]  # fmt: skip
    assert shape.schema.key == ()
    assert not shape.forgotten


def test_two_columns_that_swap_their_names_keep_their_values() -> None:
    swapped = alter(T, "k int4", "b text", "a int4", attnums=[1, 2, 3])
    shape = walk(T, swapped)
    assert shape.schema.names == ("k", "b", "a")
    assert shape.places[T.version] == shape.places[swapped.version] == (0, 1, 2)


def test_a_dropped_column_gives_its_name_to_the_one_that_has_it_now() -> None:
    taken = alter(T, "k int4", "a int4", attnums=[1, 3])
    shape = walk(T, taken)
    assert shape.schema.columns[1].name == "a (2)"
    assert shape.schema.columns[2].name == "a"
    assert (shape.places[T.version], shape.places[taken.version]) == ((0, 1, 2), (0, 2))
    differs = alter(T, "k int4", "A text", "b int4", attnums=[1, 4, 3])
    assert walk(T, differs).schema.names[1] != walk(T, differs).schema.names[3]
    assert len({name.lower() for name in walk(T, differs).schema.names}) == 4


def test_a_column_or_table_that_was_made_again_is_known_by_its_name() -> None:
    again = alter(T, "k int4", "a int4", "b int4", attnums=[1, 4, 3])
    assert walk(T, again).places[again.version] == (0, 1, 2)
    other = replace(make_relation("t", "b int4, k int4, new text"), oid=99)
    shape = walk(T, other)
    assert shape.places[other.version] == (2, 0, 3)
    assert (shape.schema.oid, shape.schema.names) == (99, ("k", "a", "b", "new"))


def test_an_announcement_that_comes_again_changes_nothing() -> None:
    renamed = alter(T, "k int4", "c text", "b int4", attnums=[1, 2, 3])
    shape = walk(T, renamed)
    assert follow(shape, renamed, choose_own) == shape
    back = follow(shape, T, choose_own)
    assert isinstance(back, EntryShape)
    assert back.schema.names == ("k", "a", "b")


def test_values_that_a_rule_keeps_from_the_lake_are_forgotten() -> None:
    hashed = replace(
        T, columns=(*T.columns[:1], replace(T.columns[1], hashed_by="x"), T.columns[2])
    )
    assert walk(T, hashed).forgotten == (1,)
    assert walk(T, hashed, T).forgotten == (1, 1)
    excluded = alter(T, "k int4", "b int4", attnums=[1, 3], left_out=(2,))
    assert walk(T, excluded).forgotten == (1,)
    assert walk(T, excluded, excluded).forgotten == (1,)
    assert walk(excluded).forgotten == ()
    dropped = alter(T, "k int4", "b int4", attnums=[1, 3])
    assert walk(T, dropped).forgotten == ()


def test_names_that_the_lake_cannot_hold_halt_the_target() -> None:
    for columns in ("k int4, _x text", "k int4, x text, X text"):
        assert isinstance(follow(None, make_relation("t", columns), choose_own), Halt)
    no_key = make_relation("t", "k int4, v text", key="none", identity="n")
    assert isinstance(follow(None, no_key, choose_own), EntryShape)
