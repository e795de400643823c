"""A TCP proxy on loopback before a PostgreSQL server, to watch the wire and to break it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

import pytest

from tests.wire import Direction, Frame, FrameReader, StatusUpdate, parse_status

RECEIVE_BYTES = 65536
FRAMES_KEPT = 100_000  # The newest; a stream of millions must not fill the tests' memory.
CLOSE_DEADLINE_S = 10.0
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with no time: close sends RST.


class WireProxy:
    """Listens on 127.0.0.1 and forwards every connection to one server.

    `on_status` is called, on the proxy's thread, before a status update goes on to the server: the
    place to ask what was staged at that moment.
    """

    def __init__(self, port: int, on_status: Callable[[StatusUpdate], None] | None = None) -> None:
        """Listen, for a server on this port of 127.0.0.1."""
        self.on_status = on_status
        self.delay_s = 0.0
        self.frames: deque[Frame] = deque(maxlen=FRAMES_KEPT)
        self.status_updates: list[StatusUpdate] = []
        self.errors: list[Exception] = []
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._links: list[_Link] = []
        self._stranded: list[_Link] = []
        self._bytes_left: dict[Direction, int] = {}
        self._acceptor = threading.Thread(target=self._accept, name="proxy-accept", daemon=True)
        self._acceptor.start()

    @property
    def port(self) -> int:
        """Where clients connect."""
        return int(self._listener.getsockname()[1])

    def cut(self) -> None:
        """Reset every open connection at both ends."""
        with self._lock:
            links, self._links = self._links, []
        for link in links:
            link.reset()

    def pause(self) -> None:
        """Forward nothing any more, in either direction, while connections stay open."""
        self._flows.clear()

    def resume(self) -> None:
        """Forward what waited, and go on."""
        self._flows.set()

    def strand(self) -> None:
        """Leave the open connections half-open for good: nothing flows, nobody is told."""
        with self._lock:
            links, self._links = self._links, []
            self._stranded += links
        for link in links:
            link.is_stranded = True

    def reset_after(self, count: int, direction: Direction) -> None:
        """Reset all connections once this many more bytes went this way, in mid-message if so."""
        with self._lock:
            self._bytes_left[direction] = count

    def close(self) -> None:
        """Reset all connections and listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            self._links += self._stranded
        self.cut()
        self.resume()
        self._acceptor.join(CLOSE_DEADLINE_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port))
            except OSError:
                _reset(client)
                continue
            link = _Link(client, server)
            with self._lock:
                self._links.append(link)
            for direction in Direction:
                name = f"proxy {direction.value}"
                threading.Thread(
                    target=self._forward, args=(link, direction), name=name, daemon=True
                ).start()

    def _forward(self, link: _Link, direction: Direction) -> None:
        try:
            while data := link.source(direction).recv(RECEIVE_BYTES):
                self._record(link, direction, data)
                if self.delay_s:
                    time.sleep(self.delay_s)
                self._flows.wait()
                if link.is_stranded:
                    return
                allowed = self._allow(direction, len(data))
                link.sink(direction).sendall(data[:allowed])
                if allowed < len(data):
                    self.cut()
            link.sink(direction).shutdown(socket.SHUT_WR)
        except OSError:
            link.reset()
        except Exception as error:  # noqa: BLE001 - kept for the test, whose thread this is not.
            self.errors.append(error)
            link.reset()

    def _record(self, link: _Link, direction: Direction, data: bytes) -> None:
        for frame in link.read(direction, data):
            self.frames.append(frame)
            status = parse_status(frame) if direction is Direction.FROM_CLIENT else None
            if status is not None:
                if self.on_status is not None:
                    self.on_status(status)
                self.status_updates.append(status)

    def _allow(self, direction: Direction, size: int) -> int:
        with self._lock:
            if direction not in self._bytes_left:
                return size
            allowed = min(size, self._bytes_left[direction])
            self._bytes_left[direction] -= allowed
            if allowed < size:
                del self._bytes_left[direction]
            return allowed


class _Link:
    """One client's connection and ours to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.is_stranded = False
        self._ends = {Direction.FROM_CLIENT: client, Direction.FROM_SERVER: server}
        self._readers = {direction: FrameReader(direction) for direction in Direction}

    def source(self, direction: Direction) -> socket.socket:
        return self._ends[direction]

    def sink(self, direction: Direction) -> socket.socket:
        return next(end for other, end in self._ends.items() if other is not direction)

    def read(self, direction: Direction, data: bytes) -> list[Frame]:
        reader = self._readers[direction]
        asked = reader.encryption_requests
        frames = reader.read(data, time.time())
        for _ in range(reader.encryption_requests - asked):
            self._readers[Direction.FROM_SERVER].expect_encryption_answer()
        return frames

    def reset(self) -> None:
        for end in self._ends.values():
            _reset(end)


def _reset(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@pytest.fixture
def make_proxy() -> Iterator[Callable[..., WireProxy]]:
    """Lend a maker of proxies: `(port, on_status=None)`; an error of theirs fails the test."""
    proxies: list[WireProxy] = []

    def make(port: int, on_status: Callable[[StatusUpdate], None] | None = None) -> WireProxy:
        proxies.append(WireProxy(port, on_status))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.close()
    for proxy in proxies:
        for error in proxy.errors:
            raise error
