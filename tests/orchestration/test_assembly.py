"""The code location loads as a code server loads it, with the source down and the lake empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration import assembly


@pytest.mark.parametrize("tables", [[], [TableName("public", "t"), TableName("odd s", 'x"/é')]])
def test_every_definition_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: list[TableName]
) -> None:
    file = tmp_path / "walgate.toml"
    file.write_text('[source]\ndsn = "host=127.0.0.1 port=1 dbname=x"\n[lake]\nroot = "lake"\n')
    monkeypatch.setattr(assembly, "find_tables", lambda _: tables)
    repository = assembly.build_definitions(load_settings(file, {})).get_repository_def()
    repository.load_all_definitions()
    assert {job.name for job in repository.get_all_jobs()} >= {"replicate", "merge"}
    assert {sensor.name for sensor in repository.sensor_defs} >= {"keep_replicating"}
