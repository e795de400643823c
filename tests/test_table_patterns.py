"""Patterns name the tables they spell, of any spelling, and the most exact one counts."""

from __future__ import annotations

import pytest

from cdc_core.table_patterns import TablePattern
from cdc_core.vocabulary import TableName

ODD = 'a"b.*\n🎈'


@pytest.mark.parametrize(
    ("pattern", "table", "matches"),
    [
        ("public.orders", TableName("public", "orders"), True),
        ("public.orders", TableName("public", "orders2"), False),
        ("public.*", TableName("public", "or.ders"), True),
        ("public.*", TableName("publicity", "x"), False),
        ("*.audit_*", TableName("shop", "audit_log"), True),
        ("*.audit_*", TableName("shop", "Audit_log"), False),
        ("*.*", TableName("a\nb", "c\nd"), True),
        ('public."a*b"', TableName("public", "a*b"), True),
        ('public."a*b"', TableName("public", "axb"), False),
        ('"a.b".c', TableName("a.b", "c"), True),
        ('"a.b".c', TableName("a", "b.c"), False),
        (str(TableName(ODD, ODD)), TableName(ODD, ODD), True),
        ("public.[a-z]+", TableName("public", "abc"), False),
    ],
)
def test_a_pattern_matches_what_it_spells(pattern: str, table: TableName, *, matches: bool) -> None:
    assert TablePattern.parse(pattern).matches(table) is matches


@pytest.mark.parametrize("text", ["", "orders", "a.b.c", "a.", ".b", 'a."b', "a .b", "a.b,c.d "])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a table or pattern"):
        TablePattern.parse(text)


def test_exact_names_count_above_patterns_and_longer_patterns_above_shorter() -> None:
    texts = ["*.*", "public.*", "public.or*", "public.orders", 'public."o*"']
    order = sorted(texts, key=lambda text: TablePattern.parse(text).exactness)
    assert order[-2:] == ['public."o*"', "public.orders"]
    assert order[:3] == ["*.*", "public.*", "public.or*"]
