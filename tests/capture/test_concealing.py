"""Which rule conceals what, and when a column named in vain stops capture."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import SecretStr

from cdc_core.capture.concealing import make_conceal
from cdc_core.errors import ConfigurationError
from cdc_core.protocol.concealment import Treatment
from cdc_core.settings import Settings, TableSettings, parse_settings
from cdc_core.vocabulary import Relation
from tests.protocol.shapes import relation_from
from tests.walgate_command import REPOSITORY

BARE = '[source]\ndsn = "host=/x"\n[lake]\nroot = "lake"\n'


def settings_with(**rules: object) -> Settings:
    settings = parse_settings(BARE, file=REPOSITORY / "walgate.toml", environ={})
    tables = {f"public.{name}": TableSettings.model_validate(rule) for name, rule in rules.items()}
    return settings.model_copy(update={"tables": tables, "hash_key": SecretStr("k" * 64)})


def make_relation(*names: str) -> Relation:
    relation = relation_from(0, 7, "people", len(names)).relation
    columns = tuple(replace(c, name=name) for c, name in zip(relation.columns, names, strict=True))
    return replace(relation, columns=columns)


def nothing_known(_: int) -> None:
    """An empty log."""


def test_the_most_exact_rule_counts_and_nothing_else() -> None:
    settings = settings_with(**{
        "*": {"exclude": ("ssn",)},
        "people": {"hash": ("ssn",)},
        "others": {"exclude": ("note",)},
    })  # fmt: skip
    conceal = make_conceal(settings, nothing_known)
    chosen = conceal(make_relation("id", "ssn", "note"))
    assert chosen is not None
    assert chosen.treatments == (Treatment.KEEP, Treatment.HASH, Treatment.KEEP)
    assert make_conceal(settings_with(others={"exclude": ("ssn",)}), nothing_known)(
        make_relation("id", "ssn")
    ) is None  # fmt: skip


def test_a_rule_about_types_hides_no_rule_that_conceals() -> None:
    settings = settings_with(**{"*": {"exclude": ("ssn",)}, "people": {"types": {"n": "string"}}})
    chosen = make_conceal(settings, nothing_known)(make_relation("id", "ssn", "n"))
    assert chosen is not None
    assert chosen.treatments == (Treatment.KEEP, Treatment.DROP, Treatment.KEEP)


def test_a_column_of_the_key_is_not_excluded_but_may_be_hashed() -> None:
    relation = make_relation("id", "note")
    hashing = make_conceal(settings_with(people={"hash": ("id",)}), nothing_known)(relation)
    assert hashing is not None
    assert hashing.conceal_relation(relation).key == relation.key
    with pytest.raises(ConfigurationError, match="excludes id, which identifies rows"):
        make_conceal(settings_with(people={"exclude": ("id",)}), nothing_known)(relation)


def test_a_column_named_in_vain_stops_a_new_table_and_a_renaming() -> None:
    settings = settings_with(people={"exclude": ("ssn",)})
    with pytest.raises(ConfigurationError, match="may be that column renamed"):
        make_conceal(settings, nothing_known)(make_relation("id", "snn"))
    conceal = make_conceal(settings, nothing_known)
    assert conceal(make_relation("id", "ssn", "note")) is not None
    assert conceal(make_relation("id", "note")) is None, "it was dropped"
    assert conceal(make_relation("id", "note", "ssn")) is not None, "it came back"
    with pytest.raises(ConfigurationError, match="which PostgreSQL does not send for"):
        conceal(make_relation("id", "note", "number"))


def test_what_the_log_knows_of_a_table_counts_after_a_restart() -> None:
    settings = settings_with(people={"exclude": ("ssn",)})
    staged = make_relation("id", "note")
    assert make_conceal(settings, lambda _: staged)(make_relation("id", "note")) is None
    with pytest.raises(ConfigurationError):
        make_conceal(settings, lambda _: staged)(make_relation("id", "note", "number"))


def test_a_pattern_conceals_what_of_it_is_there() -> None:
    conceal = make_conceal(settings_with(**{"p*": {"exclude": ["ssn", "no_such"]}}), nothing_known)
    assert conceal(make_relation("id", "snn")) is None
    chosen = conceal(make_relation("id", "ssn"))
    assert chosen is not None
    assert chosen.treatments == (Treatment.KEEP, Treatment.DROP)
