"""A canary password and a canary row value appear nowhere but where they belong.

The value belongs in the Parquet files of the lake and in an answer; the password nowhere at all.
The index of a table's own files (Delta statistics below `tables/`) is part of its data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.fix_redis import RedisServer
from tests.fix_spark import quick_spark
from tests.postgres_server import PostgresServer
from tests.walgate_command import run_walgate, walgate_command, walgate_environment

PASSWORD = "canary-password-6173"  # noqa: S105 - What must not be found anywhere.
VALUE = "canary-value-4409"


@contextmanager
def _watch_arguments() -> Iterator[set[str]]:
    """Collect the arguments of every process that lives meanwhile."""
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            for process in psutil.process_iter(["cmdline"]):
                seen.update(process.info["cmdline"] or ())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


def _protect(server: PostgresServer) -> None:
    """Make a role that must give its password over TCP."""
    access = server.data_folder / "pg_hba.conf"
    rules = "host all canary all scram-sha-256\nhost replication canary all scram-sha-256\n"
    access.write_text(rules + access.read_text())
    server.restart()
    server.execute("postgres", f"create role canary login replication password '{PASSWORD}'")
    server.create_database("shop")
    server.execute("shop", "create table t (id int primary key, v text, n int)")
    server.execute("shop", "grant select on t to canary")
    server.execute("shop", "create publication walgate for table t")
    server.execute("shop", "select pg_create_logical_replication_slot('walgate', 'pgoutput')")


@pytest.mark.timeout(600)
def test_password_and_row_values_stay_where_they_belong(
    private_postgres: Callable[..., PostgresServer],
    redis_server: RedisServer,
    tmp_path: Path,
) -> None:
    server = private_postgres()
    _protect(server)
    dsn = f"host=127.0.0.1 port={server.port} dbname=shop user=canary"
    (tmp_path / "walgate.toml").write_text(
        f'[source]\ndsn = "{dsn}"\n[lake]\nroot = "lake"\n[redis]\nurl = "{redis_server.url}"\n'
        + "\n".join(quick_spark())
    )
    secret = {"WALGATE_SOURCE__PASSWORD": PASSWORD}
    outputs: list[str] = []

    def run(*arguments: str, environment: dict[str, str] | None = None) -> str:
        answer = run_walgate(
            "--debug", *arguments, folder=tmp_path, environment=environment or secret
        )
        outputs.append(answer.stderr)
        return answer.stdout

    with _watch_arguments() as arguments:
        capture = ChildProcess(
            walgate_command("--debug", "--config", tmp_path / "walgate.toml", "replicate"),
            log=tmp_path / "capture.log",
            environment=walgate_environment(secret),
        )
        staged = tmp_path / "lake" / "staging" / "changes" / "_delta_log"
        wait_for((staged / f"{1:020}.json").exists, 60, "the first commit")
        server.execute("shop", f"insert into t values (1, '{VALUE}', 1), (2, '{VALUE}', 2)")
        server.execute("shop", f"update t set v = v || '{VALUE}' where id = 1")
        server.execute("shop", "delete from t where id = 2")
        outputs.append(run("status", "--json"))
        outputs.append(run("check", "--json"))
        dump = redis_server.save_dump()
        assert capture.stop() == 0
        run("replicate", "--until-current")
        run("merge")
        assert VALUE in run("sql", "select v from t")
        # A change that does not fit: the table halts, and its reason quotes no value.
        server.execute("shop", f"alter table t alter n type text using '{VALUE}'")
        server.execute("shop", f"insert into t values (3, '{VALUE}', '{VALUE}')")
        run("replicate", "--until-current")
        run("merge")
        outputs.append(run("status"))
        run("sql", "select cast(v as int) from t")
        run("check", environment={"WALGATE_SOURCE__PASSWORD": PASSWORD + "x"})
        run("replicate", environment={"WALGATE_SOURCE__PASSWORD": PASSWORD + "x"})
    outputs.append((tmp_path / "capture.log").read_text())
    outputs.extend(arguments)

    for text in outputs:
        assert PASSWORD not in text
        assert VALUE not in text
    assert PASSWORD.encode() not in dump
    assert VALUE.encode() not in dump
    lake = tmp_path / "lake"
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        content = path.read_bytes()
        assert PASSWORD.encode() not in content, path
        belongs = path.suffix in {".parquet", ".crc"} or lake / "tables" in path.parents
        assert belongs or VALUE.encode() not in content, path
    assert not list((lake / "spool").iterdir())
