"""A streaming standby of a test's server."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from tests.postgres_server import PostgresServer


def make_standby(
    primary: PostgresServer,
    private_postgres: Callable[..., PostgresServer],
    version: int,
    **settings: str,
) -> PostgresServer:
    """Start a standby that follows a primary, with more settings; it holds WAL back there."""
    standby = private_postgres(version)
    standby.stop()
    for entry in standby.data_folder.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    source: list[str | Path] = [
        *("-h", primary.socket_folder, "-p", str(primary.port), "-U", "postgres"),
        *("-D", standby.data_folder, "--checkpoint=fast", "-C", "-S", "standby"),
    ]
    standby.run("pg_basebackup", *source)
    standby.configure(primary_slot_name="standby", **settings)
    (standby.data_folder / "standby.signal").touch()
    standby.start()
    return standby
