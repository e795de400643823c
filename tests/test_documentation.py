"""The pages are true of the tree: each name and each link in them leads to something."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# `path/to/file.py::name`, or `file.py::Class.method`.
NAME = re.compile(r"`([\w/]+\.py)::([\w.]+)`")
FILE = re.compile(
    r"`((?:cdc_core|spark_jobs|orchestration|walgate|tests)/[\w/]+\.py|transcripts/\w+\.(?:py|txt))`"
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([\w-]+))?\)")
MAX_README_LINES = 200
MAX_HOPS = 10


def show(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@cache
def list_names(file: Path) -> frozenset[str]:
    """The functions and classes of a module; a member is `Class.member`."""
    found: set[str] = set()

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                found.update(prefix + one.id for one in targets if isinstance(one, ast.Name))

    walk(ast.parse(file.read_text()).body, "")
    return frozenset(found)


def find_file(name: str) -> Path | None:
    """A file by its path from the root, or from `tests/`."""
    return next((p for p in (ROOT / name, ROOT / "tests" / name) if p.is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_a_page_names_functions_and_files_that_exist(page: Path) -> None:
    text = page.read_text()
    wrong = [name for name in FILE.findall(text) if find_file(name) is None]
    for name, member in NAME.findall(text):
        file = find_file(name)
        if file is None or member not in list_names(file):
            wrong.append(f"{name}::{member}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=show)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


@pytest.mark.parametrize("path", ["socket to the log", "log to a table"])
def test_each_main_path_has_at_most_ten_hops(path: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = re.search(rf"## Path from the {path}\n(.*?)\n## ", page, re.DOTALL)
    assert section is not None
    hops = re.findall(r"^\d+\. `[\w/]+\.py::[\w.]+`", section[1], re.MULTILINE)
    assert 1 < len(hops) <= MAX_HOPS
