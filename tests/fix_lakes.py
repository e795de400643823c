"""`--lakes-in-store`: the lakes of the tests are in an object store, and not in folders."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from tests.fix_object_store import run_store
from tests.lakes import CREDENTIALS, STORE_VARIABLE


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--lakes-in-store",
        action="store_true",
        help="put the lakes of the tests into an object store; skip tests that look at their files",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Run the store until the tests end, and tell child processes where it is."""
    if not config.getoption("--lakes-in-store"):
        return
    running = ExitStack()
    store = running.enter_context(run_store())
    os.environ |= CREDENTIALS | {STORE_VARIABLE: dict(store.options)["aws_endpoint"]}
    config.add_cleanup(running.close)
