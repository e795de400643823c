"""Broken servers, given to the real command: what is wrong is named with its fix."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.postgres_server import Database, PostgresServer
from tests.walgate_command import Answer, run_walgate

KEYED = "create table orders (id bigint primary key, note text)"
KEYLESS = "create table visits (at timestamptz, page text)"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def configure(folder: Path, dsn: str, slot: str = "walgate") -> None:
    text = f'[source]\ndsn = "{dsn}"\nslot = "{slot}"\n[lake]\nroot = "lake"\n'
    (folder / "walgate.toml").write_text(text)


def publish(database: Database, slot: str, *statements: str) -> None:
    for statement in statements:
        database.execute(statement)
    database.execute("create publication walgate for all tables")
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def errors(folder: Path) -> dict[str, str]:
    """Give the fixes of the errors that `check --json` names, by code; both forms must agree."""
    answer = run_walgate("check", "--json", folder=folder)
    problems = json.loads(answer.stdout)["problems"]
    found = {p["code"]: p["fix"] for p in problems if p["severity"] == "error"}
    plain = run_walgate("check", folder=folder)
    assert plain.exit_code == answer.exit_code == (1 if found else 0)
    assert all(code in plain.stdout and fix in plain.stdout for code, fix in found.items())
    assert answer.stderr == plain.stderr == ""
    assert "Traceback" not in plain.stdout
    return found


def refuses_to_replicate(folder: Path) -> Answer:
    """Capture stops at once with one line that names a fix."""
    answer = run_walgate("replicate", "--seconds", "1", folder=folder)
    assert answer.exit_code == 4, answer
    (line,) = answer.complaints
    assert "fix: " in line
    assert "Traceback" not in answer.stderr
    return answer


def test_a_sound_server_is_ready(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    publish(database, slot, KEYED)
    configure(folder, database.dsn, slot)
    assert errors(folder) == {}


def test_wal_level_replica(private_postgres: Callable[..., PostgresServer], folder: Path) -> None:
    server = private_postgres(18, wal_level="replica")
    server.execute("postgres", KEYED)
    configure(folder, server.dsn())
    found = errors(folder)
    assert found.keys() == {"wal_level", "publication_missing", "slot_missing"}
    assert "ALTER SYSTEM SET wal_level = 'logical'" in found["wal_level"]
    refuses_to_replicate(folder)
    (folder / "walgate.toml").unlink()
    created = run_walgate("init", "--dsn", server.dsn(), "--create", folder=folder)
    assert created.exit_code == 4
    assert "wal_level" in created.stderr
    assert server.query("postgres", "select count(*) from pg_publication") == [(0,)]


def test_a_role_without_privilege(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    publish(database, slot, KEYED)
    with plain_role(database) as role:
        configure(folder, database.server.dsn(database.name, user=role), slot)
        found = errors(folder)
        assert found.keys() == {"role_replication", "role_select"}
        assert f'ALTER ROLE "{role}" REPLICATION' in found["role_replication"]
        refuses_to_replicate(folder)


def test_a_missing_publication(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    database.execute(KEYED)
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    configure(folder, database.dsn, slot)
    found = errors(folder)
    assert found.keys() == {"publication_missing"}
    assert "walgate init --create" in found["publication_missing"]


def test_a_slot_that_is_taken(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    publish(database, slot, KEYED)
    configure(folder, database.dsn, slot)
    with psycopg.connect(
        database.dsn, autocommit=True, replication="database", application_name="other"
    ) as consumer:
        consumer.execute(
            f"START_REPLICATION SLOT {slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'walgate')"
        )
        assert errors(folder).keys() == {"slot_active"}
        consumer.close()


def test_a_lost_slot(private_postgres: Callable[..., PostgresServer], folder: Path) -> None:
    server = private_postgres(
        18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB"
    )
    publish(Database(server, "postgres"), "walgate", KEYED)
    for _ in range(3):
        server.execute("postgres", "insert into orders select count(*) from orders")
        server.execute("postgres", "select pg_switch_wal()")
    server.execute("postgres", "checkpoint")
    configure(folder, server.dsn())
    assert errors(folder).keys() == {"slot_lost"}
    refuses_to_replicate(folder)


def test_tables_without_a_key_are_all_named(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    publish(database, slot, KEYED, KEYLESS, 'create table "Odd ""one" (a int)')
    configure(folder, database.dsn, slot)
    answer = run_walgate("check", folder=folder)
    assert answer.exit_code == 1
    assert 'ALTER TABLE "public"."visits" ADD PRIMARY KEY' in answer.stdout
    assert 'ALTER TABLE "public"."Odd ""one" ADD PRIMARY KEY' in answer.stdout


def test_init_makes_publication_and_slot_for_the_keyed_tables(
    database: Database, folder: Path
) -> None:
    slot = f"s_{database.name}"
    database.execute(KEYED)
    database.execute(KEYLESS)
    arguments = ["init", "--dsn", database.dsn, "--slot", slot, "--create"]
    assert run_walgate(*arguments, folder=folder).exit_code == 0
    assert errors(folder) == {}
    assert database.query("select tablename::text from pg_publication_tables") == [("orders",)]
    again = run_walgate(*arguments, folder=folder)
    assert again.exit_code == 0
    assert "made" not in again.stdout


def test_init_prints_the_sql_that_the_role_may_not_run(database: Database, folder: Path) -> None:
    slot = f"s_{database.name}"
    database.execute(KEYED)
    with plain_role(database) as role:
        dsn = database.server.dsn(database.name, user=role)
        answer = run_walgate(
            "init", "--dsn", dsn, "--slot", slot, "--create", "--tables", "orders", folder=folder
        )
        assert answer.exit_code == 2, "a table is named with its schema"
        answer = run_walgate(
            "init",
            "--dsn",
            dsn,
            "--slot",
            slot,
            "--create",
            "--tables=public.orders",
            folder=folder,
        )
        assert answer.exit_code == 0, answer
        statements = [line for line in answer.stdout.splitlines() if line.endswith(";")]
        assert [line.split()[0] for line in statements] == ["CREATE", "SELECT"]
        for statement in statements:
            database.execute(statement)
        database.execute(f"alter role {role} replication")
        database.execute(f"grant select on orders to {role}")
        assert errors(folder) == {}


@contextmanager
def plain_role(database: Database) -> Iterator[str]:
    role = f"plain_{database.name}"
    database.execute(f"create role {role} login")
    try:
        yield role
    finally:
        database.execute(f"drop owned by {role}")
        database.execute(f"drop role {role}")
