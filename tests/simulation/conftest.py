"""The simulator's parts, patched in for one test."""

from __future__ import annotations

import pytest

from tests.simulation import merge_part, world


@pytest.fixture
def _simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    world.install(monkeypatch)
    merge_part.install(monkeypatch)
