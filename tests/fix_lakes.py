"""`--lakes-in-store`: the lakes of the tests are in an object store, and not in folders.

With `--store-faults SEED`, the store refuses some requests of child processes, and loses some
replies to them. What a test does itself has no faults.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.fix_object_store import run_store
from tests.lakes import CREDENTIALS, STORE_VARIABLE, spare_this_process
from tests.walgate_command import REPOSITORY


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.addoption(
        "--lakes-in-store",
        action="store_true",
        help="put the lakes of the tests into an object store; skip tests that look at their files",
    )
    parser.addoption(
        "--store-faults",
        type=int,
        metavar="SEED",
        help="let this store refuse requests of child processes and lose replies by chance",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Run the store until the tests end, and tell child processes where it is."""
    seed = config.getoption("--store-faults")
    if not config.getoption("--lakes-in-store"):
        if seed is not None:
            raise pytest.UsageError("--store-faults needs --lakes-in-store")
        return
    running = ExitStack()
    store = running.enter_context(run_store(config.getoption("--store")))
    endpoint = dict(store.options)["aws_endpoint"]
    if seed is not None:
        spare_this_process(endpoint)
        endpoint = running.enter_context(_run_proxy(endpoint, seed))
    os.environ |= CREDENTIALS | {STORE_VARIABLE: endpoint}
    config.add_cleanup(running.close)


@contextmanager
def _run_proxy(endpoint: str, seed: int) -> Iterator[str]:
    """Run a proxy in a process of its own; give its endpoint."""
    command = [sys.executable, "-m", "tests.store_proxy", endpoint, str(seed)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as proxy:
        assert proxy.stdin is not None
        assert proxy.stdout is not None
        try:
            yield proxy.stdout.readline().strip()
        finally:
            proxy.stdin.close()
            faults: dict[str, int] = json.loads(proxy.stdout.read())
    print(f"the store's faults: {faults}", file=sys.stderr)  # noqa: T201 - The run ends.
    if not faults.get("lost replies to commits"):
        raise pytest.UsageError("--store-faults: no child process lost the reply to a commit")
