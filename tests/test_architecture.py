"""The house keeps its order: imports, sizes, names, and nothing of its maker's machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAX_LINES = 400
PACKAGES = ("cdc_core", "spark_jobs", "orchestration", "walgate")
EMPTY_NAMES = {"base", "common", "helper", "helpers", "manager", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|NotImplementedError")
MACHINE_PATH = re.compile(r"(?<![\w.])/(home|root|work|Users)/")
REGISTRY = re.compile(
    r"pypi\.org|pythonhosted\.|maven\.(org|apache)|maven2/|spark-packages\.|--(extra-)?index-url"
)
SLEEPERS = {"tests/deadline.py", "tests/fix_proxy.py"}  # Waiting with a deadline; a slow wire.


def list_tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


TRACKED = list_tracked()
MODULES = [path for path in TRACKED if path.suffix == ".py"]


def find_lines(pattern: re.Pattern[str], paths: list[Path]) -> list[str]:
    return [
        f"{name_of(path)}:{number}"
        for path in paths
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if path != Path(__file__) and pattern.search(line)
    ]


def test_the_files_are_found() -> None:
    assert {"Makefile", "cdc_core/vocabulary.py"} <= {name_of(path) for path in TRACKED}


def test_imports_keep_their_layers() -> None:
    checked = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_no_module_outgrows_its_noun() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_no_module_has_an_empty_name() -> None:
    words = {name_of(path): set(re.split(r"[._]", path.name)) for path in MODULES}
    assert [name for name, parts in words.items() if parts & EMPTY_NAMES] == []


def test_packages_open_with_a_docstring_and_nothing_else() -> None:
    openings = [path for path in MODULES if path.name == "__init__.py"]
    assert {name_of(path).split("/")[0] for path in openings} >= set(PACKAGES)
    for path in openings:
        module = ast.parse(path.read_text())
        assert ast.get_docstring(module), name_of(path)
        # The package that users import has nothing but its public names.
        rest = module.body[1:] if name_of(path) != "walgate/__init__.py" else []
        assert rest == [], name_of(path)


def test_nothing_is_left_unfinished() -> None:
    assert find_lines(UNFINISHED, MODULES) == []


def test_tests_wait_for_states_and_use_real_parts() -> None:
    tests = [path for path in MODULES if name_of(path).startswith("tests/")]
    awake = [path for path in tests if name_of(path) not in SLEEPERS]
    assert find_lines(re.compile(r"\bsleep\("), awake) == []
    assert find_lines(re.compile(r"^\s*(from|import) unittest\b"), tests) == []


def find_composed_with_parameters(source: str) -> list[int]:
    """Give the lines of statements with parameters that are not written whole in the module.

    In a statement with parameters a `%` in a name or a literal would be taken for one of them.
    """
    module = ast.parse(source)
    written = {
        target.id
        for one in module.body
        if isinstance(one, ast.Assign) and "sql." not in ast.unparse(one.value)
        for target in one.targets
        if isinstance(target, ast.Name)
    }
    return [
        call.lineno
        for call in ast.walk(module)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in {"execute", "executemany", "copy", "stream"}
        and (len(call.args) > 1 or any(one.arg in {"params", "vars"} for one in call.keywords))
        and not (isinstance(call.args[0], ast.Constant) and isinstance(call.args[0].value, str))
        and not (isinstance(call.args[0], ast.Name) and call.args[0].id in written)
    ]


def test_a_statement_with_parameters_is_written_whole_in_its_module() -> None:
    speaking = [path for path in MODULES if name_of(path).split("/")[0] in PACKAGES]
    assert {
        name_of(path): lines
        for path in speaking
        if (lines := find_composed_with_parameters(path.read_text()))
    } == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("_A = 'select %s'\nc.execute(_A, (1,))", []),
        ("c.execute('select %s', (1,))\nc.execute(sql.SQL('select 1'))", []),
        ("_A = sql.SQL('select %s')\nc.execute(_A, (1,))", [2]),
        ("c.execute(sql.SQL('select %s'), (1,))", [1]),
        ("c.execute(query, params={'a': 1})\nc.execute(f'select {x}', [1])", [1, 2]),
        ("def f():\n    a = sql.SQL('x')\n    c.copy(a, [1])", [3]),
    ],
)
def test_composed_statements_with_parameters_are_found(source: str, lines: list[int]) -> None:
    assert find_composed_with_parameters(source) == lines


def test_no_file_names_a_machine_or_a_registry() -> None:
    assert find_lines(MACHINE_PATH, TRACKED) == []
    assert find_lines(REGISTRY, TRACKED) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (UNFINISHED, "# TODO later"),
        (MACHINE_PATH, "open('/home/me/x')"),
        (REGISTRY, "--extra-index-url https"),
        (REGISTRY, "https://pypi.org/simple"),
    ],
)
def test_the_patterns_find_what_they_look_for(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)
