"""The demo's object store: the S3 server of moto, in memory, on loopback.

`python -m orchestration.demo.object_store PORT` runs it until a signal ends it.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import signal
import sys
import threading
import urllib.request
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from wsgiref.types import StartResponse, WSGIEnvironment

from cdc_core.errors import ConfigurationError
from orchestration.stack.page import HOST

ROOT = "s3://walgate-demo/lake"
if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

_BUCKET, _REGION = "walgate-demo", "us-east-1"
# What a user writes before a command that reaches the store.
ANY_CREDENTIALS = "AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any"
_TIMEOUT_S = 5.0
# The server asks for no credentials, but Walgate's libraries do.
_KEY, _SECRET = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"


def enter_store_environment() -> None:
    """Remove what the environment has for other stores; make credentials for the demo's own."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        del os.environ[name]
    os.environ |= {_KEY: "walgate-demo", _SECRET: secrets.token_hex(16)}


def list_options(endpoint: str) -> dict[str, str]:
    """The options of the store for `[lake] storage_options`."""
    return {"aws_allow_http": "true", "aws_endpoint": endpoint, "aws_region": _REGION}


def make_command(port: int) -> list[str | Path]:
    """The command that runs the server. Raises: ConfigurationError if it is not installed."""
    if importlib.util.find_spec("moto") is None:
        raise ConfigurationError(
            ["the demo's object store is missing: the extra `demo` is not installed"],
            fix="run `make setup` in the checkout, or `pip install 'walgate[demo]'`",
        )
    return [sys.executable, "-m", "orchestration.demo.object_store", str(port)]


def make_bucket(endpoint: str) -> bool:
    """Make the demo's bucket; False if the server does not answer yet."""
    request = urllib.request.Request(f"{endpoint}/{_BUCKET}", method="PUT")  # noqa: S310 - http.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S):
            return True
    except (URLError, OSError):
        return False


def start_server(port: int) -> BaseWSGIServer:
    """Start the server in a thread of this process; 0 means a free port."""
    # Only a process that runs the server needs moto.
    from moto.moto_server.werkzeug_app import create_backend_app  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    logging.getLogger("werkzeug").disabled = True
    # moto's own program looks for the service of each request, which takes more time than the rest.
    answer, writing = create_backend_app("s3"), threading.Lock()

    def serve(request: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request. moto first looks at a condition, then writes: one write at a time."""
        with nullcontext() if request["REQUEST_METHOD"] in {"GET", "HEAD"} else writing:
            answered: Iterable[bytes] = answer(request, start)
            return answered

    server = make_server(HOST, port, serve, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def main(port: int) -> None:
    """Run the server until SIGTERM or SIGINT."""
    server = start_server(port)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    server.shutdown()


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main(int(sys.argv[1]))
