"""What the preflight says of types: choices that none can follow, and what readers must know."""

from __future__ import annotations

from contextlib import closing

import pytest

from cdc_core.settings import SourceSettings, TableSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.preflight import find_problems
from cdc_core.source.problems import Problem, Severity
from tests.postgres_server import Database

TABLE = (
    "create table t (id int primary key, n numeric, p net, d date, a numeric[], mood mood,"
    " moods mood[], place place, seen regclass, note text)"
)


def find(database: Database, rules: dict[str, TableSettings] | None = None) -> list[Problem]:
    source = SourceSettings(dsn=database.dsn, slot="none_of_that_name")
    with closing(open_connection(source)) as connection:
        problems = find_problems(connection, source, rules)
    return [p for p in problems if p.code not in {"slot_missing", "wal_unlimited"}]


@pytest.mark.parametrize(
    ("pattern", "types", "errors"),
    [
        ("public.t", {"n": "decimal(38,4)", "p": "bigint", "a": "array<decimal(9,2)>"}, []),
        ("public.t", {"d": "string", "mood": "string"}, []),
        ("public.t", {"amount": "string"}, ["types_without_column"]),
        ("public.*", {"amount": "string"}, []),
        ("public.t", {"id": "decimal(20,0)"}, ["types_key"]),
        ("public.t", {"d": "bigint"}, ["types_unfit"]),
        ("public.t", {"a": "decimal(9,2)", "n": "double"}, ["types_unfit", "types_unfit"]),
        ("public.*", {"mood": "bigint", "id": "string"}, ["types_key", "types_unfit"]),
    ],
)
def test_chosen_types_are_held_against_what_is_published(
    database18: Database, pattern: str, types: dict[str, str], errors: list[str]
) -> None:
    make_table(database18)
    problems = find(database18, {pattern: TableSettings(types=types)})
    assert sorted(p.code for p in problems if p.severity is Severity.ERROR) == errors
    assert all(p.table == "public.t" for p in problems if p.severity is Severity.ERROR)


def test_types_whose_values_change_in_place_and_types_of_users_are_noted(
    database: Database,
) -> None:
    make_table(database)
    notes = {p.code: p for p in find(database)}
    assert {p.severity for p in notes.values()} == {Severity.NOTE}
    in_place = "mood (mood), moods (mood[]), place (place), seen (regclass)"
    assert notes["type_in_place"].found == in_place
    assert notes["type_as_text"].found == in_place.removesuffix(", seen (regclass)")
    database.execute("alter table t drop mood, drop moods, drop place, drop seen")
    assert find(database) == []


def make_table(database: Database) -> None:
    """Make a table with types of every kind, domains over them, and a publication."""
    for statement in (
        "create domain price as numeric(10,2)",
        "create domain net as price",
        "create type mood as enum ('well')",
        "create domain today as mood",
        "create type place as (x int, y int)",
        TABLE,
        "create publication walgate for table t",
    ):
        database.execute(statement)
