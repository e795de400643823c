"""Settings that come from the file and from the environment."""

from __future__ import annotations

from pathlib import Path

from cdc_core.settings import parse_settings

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
