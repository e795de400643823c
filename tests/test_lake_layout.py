"""Names of the lake: safe on every file system, and written in one module only."""

from __future__ import annotations

import ast
from pathlib import Path

from cdc_core import lake_layout
from cdc_core.lake_layout import name_checkpoint, name_commit, name_lock, name_table
from cdc_core.vocabulary import TableName

ROOT = Path(__file__).parent.parent
PACKAGES = ("cdc_core", "spark_jobs", "orchestration")
LAYOUT = ROOT / "cdc_core" / "lake_layout.py"
# Also names of settings, columns, and groups of assets. They name a path only beside a slash.
WORDS = {"append", "ledger", "locks", "spool", "staging", "tables"}


def test_a_table_has_a_folder_below_that_of_its_schema() -> None:
    assert name_table(TableName("public", "orders")) == "tables/public/orders"
    assert name_table(TableName("a/b", "T.é")) == "tables/a~2Fb/T~2E~C3~A9"


def test_a_lock_has_the_longest_name_that_linux_accepts() -> None:
    longest, other = "é" * 60, "é" * 59 + "e"
    assert name_lock("public.orders") == "locks/public~2Eorders"
    assert len(name_lock(longest).removeprefix("locks/")) == 255
    assert name_lock(longest) != name_lock(other)
    assert "~~" not in name_lock("é" * 40)


def test_versions_have_the_names_of_the_delta_protocol() -> None:
    assert name_commit(7) == "_delta_log/00000000000000000007.json"
    assert name_checkpoint(7) == "_delta_log/00000000000000000007.checkpoint.parquet"


def find_paths(source: str) -> list[str]:
    """The strings in a module that name something of the lake, without its docstrings."""
    named = [text for name, text in vars(lake_layout).items() if name.strip("_").isupper()]
    whole = {text for text in named if isinstance(text, str)} - WORDS
    parts = {part for text in whole | WORDS for part in text.split("/")}
    tree = ast.parse(source)
    texts = [one for one in ast.walk(tree) if isinstance(one, ast.Constant)]
    joined = [
        one.right
        for one in ast.walk(tree)
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div)
    ]
    return [
        *(one.value for one in texts if one.value in whole),
        *(one.value for one in joined if isinstance(one, ast.Constant) and one.value in parts),
    ]


def test_no_other_module_writes_a_path_of_the_lake() -> None:
    assert find_paths('root / "staging" / "changes"') == ["changes", "staging"]
    assert find_paths('open("ledger/cuts"), log / "_delta_log"') == [
        *("ledger/cuts", "_delta_log", "_delta_log")
    ]
    found = {
        module.relative_to(ROOT).as_posix(): paths
        for package in PACKAGES
        for module in (ROOT / package).rglob("*.py")
        if module != LAYOUT and (paths := find_paths(module.read_text()))
    }
    assert found == {}
