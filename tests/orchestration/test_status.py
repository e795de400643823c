"""`walgate status`: it answers whatever is up, and says what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cdc_core.settings import load_settings
from cdc_core.table_states import TableState
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import StateRecord, write_states
from tests.fix_redis import RedisServer
from tests.postgres_server import Database
from tests.walgate_command import run_walgate


def prepare(database: Database, folder: Path, redis_url: str = "unix:///nowhere") -> str:
    slot = f"s_{database.name}"
    database.execute("create table orders (id bigint primary key, note text)")
    database.execute("create publication walgate for all tables")
    database.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    configure(folder, database.dsn, slot, redis_url)
    return slot


def configure(folder: Path, dsn: str, slot: str, redis_url: str) -> None:
    (folder / "walgate.toml").write_text(
        f'[source]\ndsn = "{dsn}"\nslot = "{slot}"\n[lake]\nroot = "lake"\n'
        f'[redis]\nurl = "{redis_url}"\n'
    )


def read_status(folder: Path) -> tuple[int, dict[str, Any]]:
    answer = run_walgate("status", "--json", folder=folder)
    assert "Traceback" not in answer.stderr
    return answer.exit_code, json.loads(answer.stdout)


def codes(answer: dict[str, Any]) -> set[str]:
    return {problem["code"] for problem in answer["problems"]}


def test_status_answers_before_anything_was_staged(database: Database, tmp_path: Path) -> None:
    slot = prepare(database, tmp_path)
    exit_code, answer = read_status(tmp_path)
    assert exit_code == 0
    assert answer.keys() == {
        *("version", "at", "source", "slot", "capture", "lake", "redis", "maintenance"),
        *("tables", "backfills", "problems"),
    }
    assert (answer["slot"]["name"], answer["slot"]["state"]) == (slot, "idle")
    assert answer["capture"]["state"] == "stopped"
    assert answer["capture"]["staged_lsn"] is None
    assert [table["table"] for table in answer["tables"]] == ["public.orders"]
    assert not (tmp_path / "lake").exists(), "status writes nothing"
    plain = run_walgate("status", folder=tmp_path)
    assert plain.exit_code == 0
    assert "public.orders" in plain.stdout


def test_status_shows_what_was_staged_with_redis_up_or_down(
    database: Database, tmp_path: Path, redis_server: RedisServer
) -> None:
    slot = prepare(database, tmp_path, redis_server.url)
    database.execute("insert into orders values (1, 'x')")
    done = run_walgate("replicate", "--until-current", folder=tmp_path)
    assert done.exit_code == 0, done
    exit_code, answer = read_status(tmp_path)
    assert exit_code == 0
    assert answer["redis"] == {"up": True}
    assert "redis_down" not in codes(answer)
    staged = answer["capture"]["staged_lsn"]
    assert staged == answer["slot"]["confirmed_flush_lsn"]
    configure(tmp_path, database.dsn, slot, "unix:///nowhere")
    _, answer = read_status(tmp_path)
    assert answer["redis"] == {"up": False}
    assert "redis_down" in codes(answer)
    assert answer["capture"]["staged_lsn"] == staged


def test_status_answers_with_the_source_down(database: Database, tmp_path: Path) -> None:
    slot = prepare(database, tmp_path)
    done = run_walgate("replicate", "--until-current", folder=tmp_path)
    assert done.exit_code == 0, done
    _, before = read_status(tmp_path)
    configure(tmp_path, "host=/nowhere dbname=shop", slot, "unix:///nowhere")
    exit_code, answer = read_status(tmp_path)
    assert exit_code == 3
    assert answer["source"] is None
    assert answer["slot"] is None
    assert "source_down" in codes(answer)
    assert answer["capture"]["staged_lsn"] == before["capture"]["staged_lsn"]
    assert run_walgate("status", folder=tmp_path).exit_code == 3


def test_status_is_a_probe_that_fails_with_an_error(database: Database, tmp_path: Path) -> None:
    prepare(database, tmp_path)
    done = run_walgate("replicate", "--until-current", folder=tmp_path)
    assert done.exit_code == 0, done
    lake = Lake.of(load_settings(tmp_path / "walgate.toml", {}))
    for is_curable, expected in ((True, 0), (False, 1)):
        halted = StateRecord(
            "public.orders", TableState.HALTED, "of this test", "none", curable=is_curable
        )
        write_states(lake, [halted])
        exit_code, answer = read_status(tmp_path)
        assert (exit_code, is_halted(answer)) == (expected, not is_curable), answer["problems"]
        assert run_walgate("status", folder=tmp_path).exit_code == expected


def is_halted(answer: dict[str, Any]) -> bool:
    (table,) = answer["tables"]
    return bool(table["state"] == "halted")
