"""`walgate publish`: what it adds and refuses, and that no writer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.truth import read_log
from tests.walgate_command import Answer, run_walgate

HOSTILE = [
    "../x",
    "x" * 63,
    'a"b',
    "a'b`c\\",
    "two\nlines",
    "🎈 balloon",
    "con",
    "*",
    "a.b",
    "$1 %s {}",
]


@pytest.fixture
def run(database18: Database, tmp_path: Path) -> Callable[..., Answer]:
    """Lend `walgate publish` over the database; its publication is a hostile name too."""

    def publish(*arguments: str, user: str = "postgres", publication: str = HOSTILE[2]) -> Answer:
        name = publication.replace('"', '\\"')
        (tmp_path / "walgate.toml").write_text(
            f'[source]\ndsn = "{database18.server.dsn(database18.name, user=user)}"\n'
            f'slot = "s_{database18.name}"\npublication = "{name}"\n[lake]\nroot = "lake"\n'
        )
        return run_walgate("publish", *arguments, folder=tmp_path)

    return publish


def published(database: Database) -> list[str]:
    rows = database.query("select schemaname || '.' || tablename from pg_publication_tables")
    return sorted(name for (name,) in rows)


def make_table(database: Database, name: str, key: str = "primary key") -> None:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        create = sql.SQL("create table {} (id int " + key + ")")
        connection.execute(create.format(sql.Identifier(name)))


def test_tables_of_any_spelling_are_added_by_name_and_by_pattern(
    database18: Database, run: Callable[..., Answer]
) -> None:
    for name in HOSTILE:
        make_table(database18, name)
    make_table(database18, "keyless", key="")
    first = HOSTILE[:4]
    named = ['public."' + name.replace('"', '""') + '"' for name in first]
    shown = run("--dry-run", *named)
    assert shown.exit_code == 0, shown
    assert shown.stdout.startswith("BEGIN;\nSET LOCAL lock_timeout")
    assert published(database18) == []
    with psycopg.connect(database18.dsn, autocommit=True) as connection:
        connection.execute(shown.stdout.encode())  # What it shows is what it does.
    assert published(database18) == sorted(f"public.{name}" for name in first)
    assert run("public.*").exit_code == 0
    assert published(database18) == sorted(f"public.{name}" for name in HOSTILE)
    again = run("public.*")
    assert again.stdout == "nothing to add: all of these are published\n"
    assert again.stderr == "left out, because it has no key: public.keyless\n"


def test_what_it_cannot_publish_is_refused_with_the_reason(
    database18: Database, run: Callable[..., Answer]
) -> None:
    make_table(database18, "keyless", key="")
    database18.execute("create table p (id int primary key) partition by range (id)")
    database18.execute("create table p1 partition of p for values from (0) to (9)")
    assert run("orders").exit_code == 2
    assert "names no table" in run("public.nothing").stderr
    for name in ("keyless", "p1"):
        answer = run(f"public.{name}")
        assert answer.exit_code == 4
        assert "cannot be published" in answer.stderr
    database18.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')",
                     [f"s_{database18.name}"])  # fmt: skip
    assert "the slot cannot read changes that are older" in run("public.p").stderr
    assert published(database18) == []


def test_a_role_that_may_not_is_shown_the_sql(
    database18: Database, run: Callable[..., Answer]
) -> None:
    make_table(database18, "t")
    role = f"plain_{database18.name}"
    database18.execute(f"create role {role} login")
    try:
        answer = run("public.t", user=role)
        assert answer.exit_code == 0, answer
        assert answer.stdout.endswith("let an owner of the tables run it.\n")
        assert published(database18) == []
        with psycopg.connect(database18.dsn, autocommit=True) as connection:
            connection.execute(answer.stdout.encode())
        assert published(database18) == ["public.t"]
    finally:
        database18.execute(f"drop role {role}")


def test_f24_a_writer_under_way_is_waited_for_and_named(
    database18: Database, run: Callable[..., Answer], make_pipeline: Callable[..., Pipeline]
) -> None:
    make_table(database18, "other")
    pipeline = make_pipeline(database18)
    database18.execute("drop publication walgate")
    database18.execute("create publication walgate for table other")
    database18.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    database18.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [pipeline.slot])
    make_table(database18, "t")
    with psycopg.connect(database18.dsn, application_name="the writer") as writer:
        writer.execute("insert into t values (1)")
        refused = run("public.t", publication="walgate")
        assert refused.exit_code == 3
        assert f"PID {writer.info.backend_pid} (the writer)" in refused.stderr
        assert published(database18) == ["public.other"]
        answers: list[Answer] = []
        publisher = threading.Thread(
            target=lambda: answers.append(run("public.t", publication="walgate"))
        )
        publisher.start()
        waiting = "select exists (select from pg_locks where not granted and mode = 'ShareLock')"
        with psycopg.connect(database18.dsn, autocommit=True) as observer:
            while observer.execute(waiting.encode()).fetchone() != (True,):
                assert publisher.is_alive()
        writer.execute("insert into t values (2)")
        writer.commit()
        publisher.join()
    assert answers[0].exit_code == 0, answers
    database18.execute("insert into t values (3)")
    pipeline.catch_up()
    staged = [c.values for t in read_log(pipeline.root) for c in t.changes if c.table == "public.t"]
    # Without the lock 2 would be staged and 1, of the same transaction, lost to every reader.
    assert staged == [("3",)]
