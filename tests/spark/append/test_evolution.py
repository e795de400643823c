"""A target of entries has all columns that its source's table ever had; no Spark."""

from __future__ import annotations

from dataclasses import replace

from cdc_core.vocabulary import Relation
from spark_jobs.append.evolution import EntrySchema, evolve_entries
from spark_jobs.schema.evolution import choose_own
from tests.spark.relations import make_relation

T = make_relation("t", "k int4, a text, b int4")


def walk(*relations: Relation) -> EntrySchema:
    """The schema after some announcements."""
    schema: EntrySchema | None = None
    for relation in relations:
        schema = evolve_entries(schema, relation, choose_own)
    assert schema is not None
    return schema


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
    schema = walk(T, renamed, dropped)
    assert schema.table.names == ("k", "c", "b", "d")
    assert [schema.indexes[one.version] for one in (T, renamed, dropped)] == [
        (0, 1, 2), (0, 1, 2), (0, 1, 3)
    ]  # fmt: skip
    assert schema.table.key == ()
    assert not schema.hidden


def test_two_columns_that_swap_their_names_keep_their_values() -> None:
    swapped = alter(T, "k int4", "b text", "a int4", attnums=[1, 2, 3])
    schema = walk(T, swapped)
    assert schema.table.names == ("k", "b", "a")
    assert schema.indexes[T.version] == schema.indexes[swapped.version] == (0, 1, 2)


def test_a_dropped_column_gives_its_name_to_the_one_that_has_it_now() -> None:
    taken = alter(T, "k int4", "a int4", attnums=[1, 3])
    schema = walk(T, taken)
    assert schema.table.columns[1].name == "a (2)"
    assert schema.table.columns[2].name == "a"
    assert (schema.indexes[T.version], schema.indexes[taken.version]) == ((0, 1, 2), (0, 2))
    differs = alter(T, "k int4", "A text", "b int4", attnums=[1, 4, 3])
    assert walk(T, differs).table.names[1] != walk(T, differs).table.names[3]
    assert len({name.lower() for name in walk(T, differs).table.names}) == 4


def test_a_column_or_table_that_was_made_again_is_known_by_its_name() -> None:
    again = alter(T, "k int4", "a int4", "b int4", attnums=[1, 4, 3])
    assert walk(T, again).indexes[again.version] == (0, 1, 2)
    other = replace(make_relation("t", "b int4, k int4, new text"), oid=99)
    schema = walk(T, other)
    assert schema.indexes[other.version] == (2, 0, 3)
    assert (schema.table.oid, schema.table.names) == (99, ("k", "a", "b", "new"))
    assert evolve_entries(schema, other, choose_own) == schema, "a has no attnum any more"
    grown = replace(other, columns=(*other.columns, replace(other.columns[2], name="c", attnum=4)))
    assert walk(T, other, grown).indexes[grown.version] == (2, 0, 3, 4)


def test_an_announcement_that_comes_again_changes_nothing() -> None:
    renamed = alter(T, "k int4", "c text", "b int4", attnums=[1, 2, 3])
    schema = walk(T, renamed)
    assert evolve_entries(schema, renamed, choose_own) == schema
    assert evolve_entries(schema, T, choose_own).table.names == ("k", "a", "b")
    odd = make_relation("t", "k int4, _x text, X text, x text")
    assert evolve_entries(walk(odd), odd, choose_own) == walk(odd)


def test_values_that_a_rule_keeps_from_the_lake_are_forgotten() -> None:
    hashed = replace(
        T, columns=(*T.columns[:1], replace(T.columns[1], hashed_by="x"), T.columns[2])
    )
    assert walk(T, hashed).hidden == (1,)
    assert walk(T, hashed, T).hidden == (1, 1)
    excluded = alter(T, "k int4", "b int4", attnums=[1, 3], left_out=(2,))
    assert walk(T, excluded).hidden == (1,)
    assert walk(T, excluded, excluded).hidden == (1,)
    assert walk(excluded).hidden == ()
    dropped = alter(T, "k int4", "b int4", attnums=[1, 3])
    assert walk(T, dropped).hidden == ()


def test_a_column_that_is_excluded_twice_is_hidden_twice() -> None:
    excluded = alter(T, "k int4", "b int4", attnums=[1, 3], left_out=(2,))
    back = replace(T, left_out=(2,))
    assert walk(T, excluded, back).hidden == (1,)
    assert walk(T, excluded, back, excluded).hidden == (1, 1)
    unknown = alter(T, "k int4", "b int4", attnums=[1, 3], left_out=(0,))
    assert walk(T, unknown).hidden == (1,), "it may be any column that is no longer sent"


def test_a_known_attnum_stays_known() -> None:
    columns = (*T.columns[:1], replace(T.columns[1], attnum=None), *T.columns[2:])
    late = replace(T, columns=columns)
    renamed = alter(T, "k int4", "c text", "b int4", attnums=[1, 2, 3])
    assert walk(T, late, renamed).table.names == ("k", "c", "b")


def test_names_that_rows_may_not_have_are_spelled_another_way() -> None:
    assert walk(make_relation("t", "k int4, _x text")).table.names == ("k", "~5Fx")
    names = walk(make_relation("t", "k int4, x text, X text")).table.names
    assert names == ("k", "x", "X~20~282~29")
    no_key = make_relation("t", "k int4, v text", key="none", identity="n")
    assert walk(no_key).table.names == ("k", "v")


def test_a_type_that_does_not_fit_is_left_out() -> None:
    chosen = evolve_entries(None, T, lambda column: "int" if column.name != "k" else None)
    assert chosen.table.chosen == (None, None, "int")
