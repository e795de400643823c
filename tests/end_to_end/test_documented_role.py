"""The role in docs/operating.md, made by the text there, is enough to check and to stage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from tests.fix_pipeline import NO_REDIS
from tests.postgres_server import PostgresServer
from tests.walgate_command import REPOSITORY, run_walgate

PASSWORD = "the-role's-own"  # noqa: S105 - of a server that lives as long as the test.


def read_statements() -> list[str]:
    """Give the statements of the section "The role"."""
    page = (REPOSITORY / "docs" / "operating.md").read_text()
    section = page.split("\n## The role\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```sql\n(.*?)```", section, re.DOTALL)
    lines = [line.partition("--")[0] for line in block.splitlines()]
    return [part.strip() for part in " ".join(lines).split(";") if part.strip()]


@pytest.mark.parametrize("version", [15, 18])
def test_the_role_of_the_readme_is_enough(
    private_postgres: Callable[..., PostgresServer], tmp_path: Path, version: int
) -> None:
    server = private_postgres(version)
    access = server.data_folder / "pg_hba.conf"
    rules = "host all walgate all scram-sha-256\nhost replication walgate all scram-sha-256\n"
    access.write_text(rules + access.read_text())
    server.restart()
    server.execute("postgres", "create table public.orders (id bigint primary key, note text)")
    as_role = server.tcp_dsn(user="walgate")
    statements = [
        s.replace("'…'", "'" + PASSWORD.replace("'", "''") + "'") for s in read_statements()
    ]
    assert len(statements) == 7, statements
    for statement in statements:
        if "pg_create_logical_replication_slot" in statement:
            with psycopg.connect(as_role, password=PASSWORD, autocommit=True) as connection:
                connection.execute(statement.encode())
        else:
            server.execute("postgres", statement)
    flags = (
        "select rolsuper, rolcreatedb, rolcreaterole, rolbypassrls, rolreplication from pg_roles"
    )
    assert server.query("postgres", f"{flags} where rolname = 'walgate'") == [
        (False, False, False, False, True)
    ]
    server.execute("postgres", "insert into orders values (1, 'first')")
    (tmp_path / "walgate.toml").write_text(
        f'[source]\ndsn = "{as_role}"\n[lake]\nroot = "lake"\n[redis]\nurl = "{NO_REDIS}"\n'
    )
    secret = {"WALGATE_SOURCE__PASSWORD": PASSWORD}
    checked = run_walgate("check", "--json", folder=tmp_path, environment=secret)
    assert json.loads(checked.stdout)["problems"] == [], checked
    assert checked.exit_code == 0
    staged = run_walgate("replicate", "--until-current", folder=tmp_path, environment=secret)
    assert staged.exit_code == 0, staged
    status = json.loads(run_walgate("status", "--json", folder=tmp_path, environment=secret).stdout)
    assert [table["table"] for table in status["tables"]] == ["public.orders"]
    assert [problem["code"] for problem in status["problems"]] == ["redis_down"]
