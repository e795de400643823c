"""Settings that come from the file and from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.errors import ConfigurationError
from cdc_core.settings import parse_settings
from cdc_core.vocabulary import TableMode

FILE = """
[source]
dsn = "host=/nowhere dbname=shop"
[lake]
root = "lake"
[spark]
conf = { "spark.task.maxFailures" = 1, spark.speculation = true }
"""


def test_options_of_the_environment_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    given = '{"spark.task.maxFailures": "2", "spark": {"authenticate": {"secret": "s3cret"}}}'
    settings = parse_settings(
        FILE, file=tmp_path / "walgate.toml", environ={"WALGATE_SPARK__CONF": given}
    )
    assert settings.spark.conf == {
        "spark.task.maxFailures": "2",
        "spark.speculation": "true",
        "spark.authenticate.secret": "s3cret",
    }
    assert "s3cret" not in repr(settings)


def test_a_section_chooses_the_mode_of_its_tables(tmp_path: Path) -> None:
    text = FILE + '[tables."public.*"]\nmodes = ["soft_delete"]\n'
    settings = parse_settings(text, file=tmp_path / "walgate.toml", environ={})
    assert settings.tables["public.*"].modes == (TableMode.SOFT_DELETE,)


@pytest.mark.parametrize(
    "modes", ['["current", "soft_delete"]', '["history"]', '["append"]', "[]", "7"]
)
def test_modes_that_are_no_mode_of_a_table_are_refused(tmp_path: Path, modes: str) -> None:
    text = FILE + f'[tables."public.orders"]\nmodes = {modes}\n'
    with pytest.raises(ConfigurationError) as refused:
        parse_settings(text, file=tmp_path / "walgate.toml", environ={})
    (problem,) = refused.value.problems
    assert "modes" in problem
    assert "expected" in problem
