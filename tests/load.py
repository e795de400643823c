"""Writers on a source: pgbench with its own script and with shapes that break naive captures."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.child_process import ChildProcess
from tests.postgres_server import Database

TABLES = """
    create sequence ids start 1000000;
    create table churn (id bigint primary key, n int, note text);
    create table side (id bigint primary key, of bigint);
    create table scrap (id bigint primary key, note text);
"""

# Keys are apart by client, so that no client waits for another or meets its keys.
SCRIPTS = {
    "several_tables": """
        \\set a random(1, 200) + :client_id * 1000
        begin;
        insert into churn values (:a, 0, 'it''s') on conflict (id) do update set n = churn.n + 1;
        insert into side values (nextval('ids'), :a);
        update churn set note = repeat('é', 20) where id = :a;
        delete from side where id in (select id from side where of = :a order by id limit 2);
        commit;
    """,
    "moved_key": """
        \\set a random(1, 200) + :client_id * 1000
        begin;
        update churn set id = nextval('ids'), n = n + 1 where id = :a;
        insert into churn values (:a, 1, null) on conflict (id) do nothing;
        commit;
    """,
    "savepoints": """
        \\set a random(1, 200) + :client_id * 1000
        begin;
        insert into side values (nextval('ids'), :a);
        savepoint one;
        update churn set n = n + 10 where id = :a;
        savepoint two;
        delete from churn where id = :a;
        rollback to savepoint two;
        insert into side values (nextval('ids'), -:a);
        rollback to savepoint one;
        insert into side values (nextval('ids'), 0);
        commit;
    """,
    "rolled_back": """
        begin;
        insert into side select nextval('ids'), 7 from generate_series(1, 20);
        rollback;
    """,
    "truncated": """
        begin;
        truncate scrap;
        insert into scrap values (1, 'gone');
        truncate scrap;
        insert into scrap values (1, 'kept'), (2, 'kept');
        commit;
    """,
    "many_rows": """
        begin;
        insert into side select nextval('ids'), i from generate_series(1, 2000) i;
        delete from side where of between 1000 and 2500;
        commit;
    """,
}
WEIGHTS = {"truncated": 1, "many_rows": 1}
OFTEN = 12


def prepare(database: Database, folder: Path) -> list[Path]:
    """Make pgbench's tables and ours; the script files.

    Call it before the pipeline is made. Otherwise the log has pgbench's 100,000 rows, and a test
    that compares each row of the log takes minutes more.
    """
    with_pgbench(database, "-i", "-q", "-s", "1", "--no-vacuum")
    for statement in TABLES.split(";"):
        if statement.strip():
            database.execute(statement)
    files = []
    for name, text in SCRIPTS.items():
        file = folder / f"{name}.sql"
        file.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
        file.chmod(0o644)
        files.append(file)
    return files


def with_pgbench(database: Database, *arguments: str) -> None:
    """Run pgbench to its end."""
    server = database.server
    place = ["-h", str(server.socket_folder), "-p", str(server.port), "-U", "postgres"]
    server.run("pgbench", *arguments, *place, database.name)


@contextmanager
def running_load(
    database: Database, scripts: Sequence[Path], *, seed: int, rate: int = 80, clients: int = 2
) -> Iterator[ChildProcess]:
    """Run pgbench until the block ends; it must not have failed."""
    server = database.server
    weighted = [f"{file}@{WEIGHTS.get(file.stem, OFTEN)}" for file in scripts]
    arguments = [f"--file={file}" for file in weighted]
    child = ChildProcess(
        [
            server.bin("pgbench"),
            *("-h", str(server.socket_folder), "-p", str(server.port), "-U", "postgres"),
            *("-n", "-c", str(clients), "-T", "3600", "-R", str(rate)),
            *(f"--random-seed={seed}", f"--builtin=tpcb-like@{OFTEN}"),
            *arguments,
            database.name,
        ],
        log=scripts[0].parent / "pgbench.log",
    )
    try:
        yield child
        assert child.is_running, f"the load ended by itself:\n{child.output()}"
    finally:
        if child.is_running:
            child.stop(signal.SIGTERM)
    assert "ERROR" not in child.output(), child.output()
