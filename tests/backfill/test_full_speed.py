"""Backfills under eight writers at full speed: right at every watermark, and at rest."""

from __future__ import annotations

import threading

import pytest

from cdc_core.backfill.visibility import ChangedKeys
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import fold, read_source
from tests.backfill.hot_table import TABLE, Difference, compare, lay, stage_stream, writing
from tests.backfill.unguarded import let_all_pass
from tests.fix_pipeline import Pipeline

HOT_ROWS, LARGE_ROWS = 2000, 3_000_000


def backfill(
    pipeline: Pipeline, *, rows: int, seed: int, chunk_rows: int, rate: int | None = None
) -> tuple[int, list[Difference]]:
    """Backfill the table while it is written to; give the chunks, and what differs."""
    streamed = lay(pipeline, rows)
    settings = load_settings(pipeline.folder / "walgate.toml", {})
    table = TableName.parse(TABLE)
    with writing(pipeline.database, streamed, keys=rows, seed=seed, rate=rate):
        done = run_backfills(
            settings, [table], chunk_rows=chunk_rows, parallel=4, stop=threading.Event()
        )
    pipeline.catch_up()
    stage_stream(streamed)
    chunks, differences = compare(pipeline.root, streamed / "lake")
    assert chunks == done[table].chunks
    return chunks, differences


# Beside other tests, capture would need minutes to stage what eight writers do at full speed.
@pytest.mark.parametrize(
    ("seed", "rate"),
    [(0, 1000), *(pytest.param(n, None, marks=pytest.mark.soak) for n in range(100, 120))],
)
def test_a_hot_table_is_right_at_every_watermark(
    pipeline: Pipeline, seed: int, rate: int | None
) -> None:
    chunks, differences = backfill(pipeline, rows=HOT_ROWS, seed=seed, chunk_rows=100, rate=rate)
    assert not differences
    assert chunks >= HOT_ROWS // 200
    assert fold(pipeline.root, TABLE) == read_source(pipeline.database, TABLE)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [200, 201])
def test_a_large_table_is_right_at_every_watermark(pipeline: Pipeline, seed: int) -> None:
    chunks, differences = backfill(pipeline, rows=LARGE_ROWS, seed=seed, chunk_rows=50_000)
    assert not differences
    assert chunks >= 10


@pytest.mark.soak
def test_without_the_rule_a_hot_table_is_wrong(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChangedKeys, "find_current", let_all_pass)
    _, differences = backfill(pipeline, rows=HOT_ROWS, seed=0, chunk_rows=100, rate=1000)
    assert differences
