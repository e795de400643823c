"""The header of a run: what it runs against, and the seed that repeats it."""

from __future__ import annotations

import os
import random
import subprocess
from importlib import metadata

import pytest
from hypothesis import settings

from tests.fix_postgres import VERSIONS
from tests.fix_redis import find_redis
from tests.postgres_server import find_binaries, program_version

SEED_VARIABLE = "WALGATE_SEED"
SEED_KEY = pytest.StashKey[int]()
PACKAGES = ("pyspark", "delta-spark", "deltalake", "dagster", "psycopg", "redis", "playwright")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of the run, and let hypothesis give no example a deadline.

    The seed is for our own random histories and for hypothesis. An example may take long on a busy
    machine.
    """
    settings.register_profile("walgate", deadline=None)
    settings.load_profile("walgate")
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(2**32))
    config.stash[SEED_KEY] = seed
    # The processes of pytest-xdist get the environment of this one.
    os.environ[SEED_VARIABLE] = str(seed)
    if config.getoption("hypothesis_seed") is None:
        config.option.hypothesis_seed = str(seed)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the servers, the packages and the seed."""
    servers = {f"PostgreSQL {version}": _postgres_version(version) for version in VERSIONS}
    servers["Redis"] = _redis_version()
    packages = {name: metadata.version(name) for name in PACKAGES}
    return [
        "servers: " + ", ".join(f"{name} {version}" for name, version in servers.items()),
        "packages: " + ", ".join(f"{name} {version}" for name, version in packages.items()),
        f"seed: {config.stash[SEED_KEY]} ({SEED_VARIABLE}=… repeats it)",
    ]


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Give the seed of this run, which the header prints."""
    return pytestconfig.stash[SEED_KEY]


def _postgres_version(version: int) -> str:
    binaries = find_binaries(version)
    return "missing" if binaries is None else f"({program_version(binaries)})"


def _redis_version() -> str:
    program = find_redis()
    if program is None:
        return "missing"
    answer = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return answer.stdout.split("v=")[1].split()[0]
