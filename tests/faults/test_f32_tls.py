"""F32 over TLS (15): verify-full streams, is cut, comes back, and refuses what it cannot trust."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fix_pipeline import Pipeline
from tests.fix_proxy import WireProxy
from tests.postgres_server import PostgresServer
from tests.walgate_command import run_walgate
from tests.wire import Direction

HOST = "db.walgate.test"


@pytest.fixture
def tls(
    private_postgres: Callable[..., PostgresServer], make_pipeline: Callable[..., Pipeline]
) -> Pipeline:
    """Lend a pipeline on a server that shows a certificate for a name of its own."""
    server = private_postgres(15)
    database = server.create_database("shop")
    database.execute("create table orders (id bigserial primary key, note text)")
    pipeline = make_pipeline(database)
    make_certificates(pipeline.folder)
    for name in ("server.crt", "server.key"):
        path = shutil.copy(pipeline.folder / name, server.data_folder)
        shutil.chown(path, server.user or -1)
        Path(path).chmod(0o600)
    server.configure(ssl="on", ssl_cert_file="server.crt", ssl_key_file="server.key")
    return pipeline


def make_certificates(folder: Path) -> None:
    """Make an authority, a server's certificate that it signed, and another authority."""
    for name in ("ca", "other"):
        openssl(
            folder, "req", "-x509", *new_key(name), "-subj", f"/CN={name}", "-out", f"{name}.crt"
        )
    openssl(folder, "req", *new_key("server"), "-subj", f"/CN={HOST}", "-out", "server.csr")
    signer = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl(folder, "x509", "-req", "-in", "server.csr", *signer, "-out", "server.crt")


def new_key(name: str) -> list[str]:
    """Give the arguments that make a key."""
    return ["-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key"]


def openssl(folder: Path, *arguments: str) -> None:
    """Run openssl in a folder."""
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def reach(pipeline: Pipeline, port: int, *, host: str = HOST, authority: str = "ca") -> None:
    """Configure verify-full for a name and an authority, over an address on loopback."""
    pipeline.write_configuration(
        f"host={host} hostaddr=127.0.0.1 port={port} dbname=shop user=postgres"
        f" sslmode=verify-full sslrootcert={pipeline.folder / authority}.crt"
    )


def test_f32_a_verified_connection_streams_and_is_made_again_when_cut(
    tls: Pipeline, make_proxy: Callable[..., WireProxy]
) -> None:
    proxy = make_proxy(tls.database.server.port)
    reach(tls, proxy.port)
    child = tls.start_streaming()
    pid = tls.slot_facts()["pid"]
    assert tls.database.query("select ssl from pg_stat_ssl where pid = %s", [pid]) == [(True,)]
    proxy.reset_after(70_000, Direction.FROM_SERVER)
    # One row of many TLS records, the cut in the middle of it.
    tls.database.execute("insert into orders (note) values (repeat('x', 1000000))")
    tls.wait_for_line(child, "session ended")
    tls.wait_until_staged(tls.current_lsn())
    tls.finish(child)
    assert tls.require_truth() == 1


@pytest.mark.parametrize(
    ("trusted", "fix"),
    [
        ({"host": "other.walgate.test"}, "the name in the server's certificate"),
        pytest.param(
            {"authority": "other"},
            "sslrootcert to the certificate of its authority",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_f32_a_server_that_cannot_be_verified_is_refused(
    tls: Pipeline, trusted: dict[str, str], fix: str
) -> None:
    reach(tls, tls.database.server.port, **trusted)
    answer = run_walgate("replicate", "--until-current", folder=tls.folder)
    assert answer.exit_code == 4, answer
    assert "certificate" in answer.complaints[-1]
    assert fix in answer.complaints[-1]


@pytest.mark.soak
def test_f32_a_server_without_tls_is_refused(tls: Pipeline) -> None:
    tls.database.server.configure(ssl="off")
    reach(tls, tls.database.server.port)
    answer = run_walgate("replicate", "--until-current", folder=tls.folder)
    assert answer.exit_code == 4, answer
    assert "does not support SSL" in answer.complaints[-1]
