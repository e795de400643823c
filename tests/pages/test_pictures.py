"""The pictures of the docs: taken of a running shop, with the names that the code gives today.

`make pictures` runs the soak test of this file and keeps what the browser showed. Beside the
pictures, `shown.json` has the names and descriptions that the pages had then.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from playwright.sync_api import Browser, FloatRect, ViewportSize, expect

from cdc_core.backfill.results import BackfillProgress
from cdc_core.coordination.live import Figures
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration import assembly
from orchestration.backfill.events import describe_progress
from orchestration.capture.staging_reports import describe_staging
from orchestration.demo.stack import DemoOptions, Stack
from orchestration.runs.keys import AssetKeys
from tests.deadline import wait_for
from tests.demo.running_demo import DEADLINE_S, running_shop
from tests.walgate_command import REPOSITORY

PICTURES = REPOSITORY / "docs" / "pictures"
SHOWN = "shown.json"
# The folder for new pictures; without it, they are deleted with the test. Read before the shop
# starts, which removes all such variables.
FOLDER = os.environ.get("WALGATE_PICTURES")
SHOP = ("customers", "deliveries", "order_lines", "orders", "payments", "products", "stock")
# So slow that the page shows a backfill under way.
ROWS, ROWS_PER_SECOND = 30_000, 250
PROGRESS = re.compile(r"public\.\w+: running, [\d,]+ rows \(\d+ %\) in \d+ chunks? at")
PLOTS = ("lag_bytes", "lag_seconds", "rows_per_second")
FIGURES = Figures(1, "streaming", 1, "0/1", "0/1", 0, 0.0, 0.0, 0, 0, 0, 0.0)
PAGE_MS = 60_000
SIZE = ViewportSize(width=1600, height=1000)
RIGHT_OF_MENU = FloatRect(x=540, y=0, width=1060, height=720)
# The column beside it has a path of the machine.
PLOT_COLUMN = FloatRect(x=240, y=90, width=950, height=910)


def describe_pages(folder: Path, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names and descriptions on the pictured pages, from the code."""
    config = folder / "walgate.toml"
    config.write_text('[source]\ndsn = "host=127.0.0.1 port=1 dbname=x"\n[lake]\nroot = "lake"\n')
    tables = [TableName("public", name) for name in SHOP]
    with patch.context() as patched:
        patched.setattr(assembly, "find_tables", lambda _: tables)
        definitions = assembly.build_definitions(load_settings(config, {}))
    specs = [
        spec
        for asset in definitions.assets or ()
        if isinstance(asset, dg.AssetsDefinition)
        for spec in asset.specs
    ]
    return {
        "assets": {
            spec.key.to_user_string(): [spec.group_name, spec.description, sorted(spec.kinds)]
            for spec in specs
        },
        "log": [*describe_staging(FIGURES, None, version=1)],
        "backfill": [*describe_progress(BackfillProgress(""), 1.0)],
    }


def test_the_pictures_show_the_names_and_descriptions_of_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = json.loads((PICTURES / SHOWN).read_text())
    assert shown == describe_pages(tmp_path, monkeypatch), "run `make pictures` and look at them"
    for name in ("assets", "backfill", "lag"):
        assert (PICTURES / f"{name}.png").stat().st_size > 0


@pytest.fixture
def start_demo(tmp_path: Path) -> Iterator[Stack]:
    """Lend the demo's stack; its tables are read slowly."""
    options = DemoOptions(tmp_path / "demo", rows=ROWS, writers=3, per_second=30, seed=1)
    with running_shop(options, WALGATE_BACKFILL__ROWS_PER_SECOND=str(ROWS_PER_SECOND)) as stack:
        yield stack


@pytest.mark.soak
@pytest.mark.timeout(3 * DEADLINE_S)
def test_pictures_are_taken_of_a_running_shop(
    start_demo: Stack, browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(FOLDER or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    shop = start_demo
    url, instance, own = shop.dagster.url, shop.dagster.instance, AssetKeys.of(shop.settings)
    tables = [own.find_table(TableName("public", name)) for name in SHOP]
    keys = [own.staging, own.cuts, own.backfill, *tables]
    with closing(browser.new_page(viewport=SIZE)) as page:
        page.set_default_timeout(PAGE_MS)
        expect.set_options(timeout=PAGE_MS)

        def shows_progress() -> bool:
            """Open the page; return whether its newest event reports a running backfill."""
            page.goto(f"{url}/assets/backfill?view=events")
            page.get_by_text("Metadata", exact=True).or_(
                page.get_by_text("No events")
            ).first.wait_for()
            return page.get_by_text(PROGRESS).count() > 0

        wait_for(shows_progress, DEADLINE_S, "the page to show a backfill under way")
        page.screenshot(path=folder / "backfill.png")

        def are_materialized() -> bool:
            is_whole = len(instance.get_materialized_partitions(own.backfill)) == len(SHOP)
            return is_whole and all(map(instance.get_latest_materialization_event, keys))

        wait_for(are_materialized, DEADLINE_S, "every asset to be materialized")
        page.goto(f"{url}/asset-groups")
        # A folded group counts its assets by state.
        expect(page.get_by_text(str(len(SHOP)), exact=True)).to_be_visible()
        expect(page.get_by_text("fetching statuses")).to_have_count(0)
        page.screenshot(path=folder / "assets.png", clip=RIGHT_OF_MENU)

        page.goto(f"{url}/assets/staging/changes?view=overview")
        page.get_by_role("button", name="Plots").click()
        for name in PLOTS:
            expect(page.get_by_text(name, exact=True)).to_be_attached()
        page.locator("canvas").first.wait_for()
        page.get_by_text(PLOTS[0], exact=True).evaluate("plot => plot.scrollIntoView()")
        page.screenshot(path=folder / "lag.png", clip=PLOT_COLUMN)
    (folder / SHOWN).write_text(
        json.dumps(describe_pages(tmp_path, monkeypatch), indent=2, ensure_ascii=False) + "\n"
    )
