"""What the preflight says of `exclude` and `hash`: a rule that conceals nothing is an error."""

from __future__ import annotations

from contextlib import closing

import pytest

from cdc_core.settings import SourceSettings, TableSettings
from cdc_core.source.connection import open_connection
from cdc_core.source.preflight import find_problems
from cdc_core.source.problems import Severity
from tests.postgres_server import Database

EXCLUDE = {"exclude": ("ssn",)}


@pytest.mark.parametrize(
    ("rules", "errors", "warnings"),
    [
        ({"public.people": EXCLUDE}, {"column_reserved"}, set()),
        ({"public.people": {"exclude": ("ssn", "_x")}}, set(), set()),
        ({"public.people": {"exclude": ("_x",), "hash": ("id", "ssn")}}, set(), set()),
        ({"public.people": {"exclude": ("sn", "_x")}}, {"rule_without_column"}, set()),
        ({"public.pe*": {"exclude": ("sn", "_x")}}, set(), set()),
        ({"public.people": {"exclude": ("id", "_x")}}, {"exclude_key"}, set()),
        ({"public.person": EXCLUDE}, {"column_reserved", "rule_without_table"}, set()),
        ({"shop.*": EXCLUDE}, {"column_reserved"}, {"rule_without_table"}),
        ({"*.*": {"exclude": ("_x",)}, "public.people": EXCLUDE}, {"column_reserved"}, set()),
    ],
)
def test_rules_are_held_against_what_is_published(
    database18: Database,
    rules: dict[str, dict[str, tuple[str, ...]]],
    errors: set[str],
    warnings: set[str],
) -> None:
    database18.execute("create table people (id int primary key, ssn text, _x int)")
    database18.execute("create publication walgate for table people")
    source = SourceSettings(dsn=database18.dsn, slot="none_of_that_name")
    settings = {text: TableSettings.model_validate(rule) for text, rule in rules.items()}
    with closing(open_connection(source)) as connection:
        problems = find_problems(connection, source, settings)
    found = {p.code for p in problems if p.severity is Severity.ERROR} - {"slot_missing"}
    assert found == errors
    alarms = {p.code for p in problems if p.severity is Severity.WARNING} - {"wal_unlimited"}
    assert alarms == warnings
