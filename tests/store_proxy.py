"""A proxy before an object store that does what a failing store or network does.

`python -m tests.store_proxy ENDPOINT SEED` fails by chance until its standard input ends.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeAlias
from urllib.parse import urlsplit

from typing_extensions import override

from cdc_core.lake_layout import DELTA_LOG
from cdc_core.lake_storage.object_store import ObjectStore
from tests.lakes import describe_store

_CONDITIONS = {"if-match", "if-none-match"}
# Headers of one connection, which the proxy makes itself.
_OF_CONNECTION = {"connection", "transfer-encoding", "content-length", "expect", "keep-alive"}


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a client. The path has the query, and names of headers are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def is_conditional_write(self) -> bool:
        """Whether the request writes an object on a condition."""
        return self.method == "PUT" and not _CONDITIONS.isdisjoint(self.headers)


@dataclass(frozen=True, slots=True)
class Answer:
    """What the proxy answers by itself."""

    status: int
    code: str


class LostReply:
    """The store acts, and its reply is lost."""


class Unconditional:
    """The store acts without looking at conditions."""


Fault: TypeAlias = Answer | LostReply | Unconditional | None
Choose: TypeAlias = Callable[[Request], Fault]


SLOW_DOWN = Answer(503, "SlowDown")


class Faults:
    """Chooses faults by chance, and by rule the first time that a kind of fault is possible.

    It counts them, so that a test knows which there were. Without the rule, a test with few
    requests of a kind would lack a fault by chance.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def choose(self, request: Request) -> Fault:
        with self._lock:
            if (loss := _find_possible_loss(request)) and self._happens(*loss):
                return LostReply()
            if self._happens("refusals", 0.05):
                return SLOW_DOWN
        return None

    def _happens(self, kind: str, share: float) -> bool:
        happens = self.counts[kind] == 0 or self._chance.random() < share
        self.counts[kind] += happens
        return happens


def _find_possible_loss(request: Request) -> tuple[str, float] | None:
    """The kind of lost reply that is possible for a request, and its share."""
    if request.is_conditional_write:
        kind = "commits" if f"/{DELTA_LOG}/" in request.path else "other conditional writes"
        return f"lost replies to {kind}", 0.25
    if request.method in {"PUT", "POST"}:
        return "lost replies to other writes", 0.05
    return None


class StoreProxy:
    """Forwards requests to a store, unless `choose` gives a fault. Any thread may set `choose`."""

    def __init__(self, store: ObjectStore) -> None:
        self._behind = urlsplit(dict(store.options)["aws_endpoint"])
        self.choose: Choose = lambda _: None
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            @override
            def log_message(self, *_: object) -> None:
                pass

            def serve(self) -> None:
                proxy._serve(self)

        for method in ("GET", "PUT", "POST", "HEAD", "DELETE"):
            setattr(Handler, f"do_{method}", Handler.serve)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        host, port = self._server.server_address[:2]
        options = dict(store.options) | {"aws_endpoint": f"http://{host!s}:{port}"}
        self.store = replace(store, options=tuple(options.items()))

    @contextmanager
    def run(self) -> Iterator[StoreProxy]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _serve(self, client: BaseHTTPRequestHandler) -> None:
        headers = {name.lower(): value for name, value in client.headers.items()}
        body = _read_body(client, headers)
        assert client.command is not None
        fault = self.choose(Request(client.command, client.path, headers))
        if isinstance(fault, Answer):
            text = f"<Error><Code>{fault.code}</Code><Message>of the test</Message></Error>"
            _reply(client, fault.status, {}, text.encode())
            return
        if isinstance(fault, Unconditional):
            headers = {name: value for name, value in headers.items() if name not in _CONDITIONS}
        status, answered, content = self._forward(client, headers, body)
        if isinstance(fault, LostReply):
            client.close_connection = True
            return
        _reply(client, status, answered, content)

    def _forward(
        self, client: BaseHTTPRequestHandler, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        assert self._behind.hostname is not None
        connection = http.client.HTTPConnection(self._behind.hostname, self._behind.port)
        sent = {name: value for name, value in headers.items() if name not in _OF_CONNECTION}
        try:
            connection.request(client.command, client.path, body, sent)
            reply = connection.getresponse()
            return reply.status, dict(reply.getheaders()), reply.read()
        finally:
            connection.close()


def _read_body(client: BaseHTTPRequestHandler, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(client.rfile.readline().split(b";")[0], 16):
            body += client.rfile.read(size)
            client.rfile.readline()
        client.rfile.readline()
        return body
    return client.rfile.read(int(headers.get("content-length", 0)))


def _reply(
    client: BaseHTTPRequestHandler, status: int, headers: Mapping[str, str], content: bytes
) -> None:
    # A client that did not wait is gone.
    with suppress(ConnectionError):
        client.send_response_only(status)
        length = str(len(content))
        for name, value in headers.items():
            if client.command == "HEAD" and name.lower() == "content-length":
                length = value
            elif name.lower() not in _OF_CONNECTION:
                client.send_header(name, value)
        client.send_header("Content-Length", length)
        client.end_headers()
        if client.command != "HEAD":
            client.wfile.write(content)


def main(endpoint: str, seed: int) -> None:
    """Run a proxy before the store at an endpoint; print its own endpoint, and later its faults."""
    proxy, faults = StoreProxy(describe_store(endpoint)), Faults(seed)
    proxy.choose = faults.choose
    with proxy.run() as running:
        print(dict(running.store.options)["aws_endpoint"], flush=True)  # noqa: T201 - The answer.
        sys.stdin.read()
    print(json.dumps(faults.counts), flush=True)  # noqa: T201 - The answer.


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
