"""Secrets in excluded and hashed columns are found nowhere, on whichever path a change comes."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import run_walgate

KEY = "f" * 64
SECRET = "canary-secret-7731"  # noqa: S105 - What must not be found anywhere.
RULES = """
[tables."public.people"]
exclude = ["ssn", "scan"]
hash = ["email"]
[tables."*.wide*"]
exclude = ["ssn", "scan", "no_such"]
hash = ["email"]
"""
TABLES = ("people", "wide")


def hashed(text: str) -> str:
    return hmac.new(KEY.encode(), text.encode(), hashlib.sha256).hexdigest()


@pytest.fixture
def concealing(database18: Database, pipeline: Pipeline) -> Pipeline:
    """Lend a pipeline that conceals columns of two tables, the second under identity full.

    The hashed column of the second is younger than a row of it, and its default a secret too.
    """
    for name in TABLES:
        database18.execute(
            f"create table {name} (id int primary key, ssn text, scan text, note text)"
        )
        add = f"alter table {name} add column email text default '{SECRET}'"
        if name == "people":
            database18.execute(add)
        database18.execute(
            f"insert into {name} (id, ssn, scan, note) values (0, '{SECRET}', '{SECRET}', 'old')"
        )
        if name == "wide":
            database18.execute(add)
        database18.execute(f"alter table {name} alter scan set storage external")
    database18.execute("alter table wide replica identity full")
    file = pipeline.folder / "walgate.toml"
    settings = file.read_text().replace("batch_seconds", 'spool_bytes = "64kB"\nbatch_seconds')
    file.write_text(settings + RULES)
    pipeline.environment["WALGATE_HASH_KEY"] = KEY
    return pipeline


def change(database: Database, table: str) -> None:
    """Write secrets by every kind of change."""
    secret = f"'{SECRET}'"
    row = f"{secret}, repeat({secret}, 300), 'n', {secret}"
    database.execute(f"insert into {table} values (1, {row}), (2, {row}), (3, {row})")
    database.execute(f"update {table} set note = 'changed' where id = 1")
    database.execute(f"update {table} set email = email || {secret}, ssn = 'x' || {secret}"
                     " where id = 1")  # fmt: skip
    database.execute(f"update {table} set id = 20 where id = 2")
    database.execute(f"update {table} set email = null where id = 0")
    database.execute(f"delete from {table} where id = 3")


def change_much(database: Database, table: str) -> None:
    """Write secrets in a transaction larger than memory."""
    row = f"'{SECRET}', repeat('{SECRET}', 10), 'n', '{SECRET}'"
    database.execute(f"insert into {table} select i, {row} from generate_series(100, 6099) i")


def find_secrets(folder: Path) -> list[str]:
    """Name the files that hold a secret; the values of Parquet files are read, being packed."""
    found = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            with suppress(pa.ArrowInvalid):  # One that a killed capture had begun.
                content += str(pq.read_table(path).to_pylist()).encode()
        if any(needle in content for needle in (SECRET.encode(), SECRET.encode().hex().encode())):
            found.append(str(path))
    return found


def test_secrets_are_nowhere_on_any_path(
    database18: Database, concealing: Pipeline, spark: SparkSession
) -> None:
    outputs = []
    for name in TABLES:
        change(database18, name)
        change_much(database18, name)
    # Killed in the midst of a spooled transaction: what lies in the spool then has no secret.
    killed = concealing.start("--until-current", "--debug", WALGATE_CRASH_AT="while_spooling")
    killed.wait()
    assert killed.exit_code == -9, killed.output()
    assert any(path.is_file() for path in concealing.spool.rglob("*"))
    assert find_secrets(concealing.folder) == []
    outputs += [killed.output(), concealing.catch_up().stderr]
    answer = run_walgate(
        "check", "--json", folder=concealing.folder, environment=concealing.environment
    )
    outputs += [answer.stdout, answer.stderr]

    lake = Lake(concealing.lake)
    done = merge_until(spark.newSession(), lake, round_rows=1_000_000)
    assert [halt for round_ in done for halt in round_.halted.values()] == []
    for name in TABLES:
        table = spark.read.format("delta").load(str(concealing.root / "tables" / "public" / name))
        assert [c for c in table.columns if not c.startswith("_")] == ["id", "note", "email"]
        rows = {row.id: (row.note, row.email) for row in table.where("id < 100").collect()}
        both = hashed(SECRET + SECRET)
        assert rows == {
            0: ("old", None), 1: ("changed", both), 20: ("n", hashed(SECRET)),
        }  # fmt: skip
        assert table.where(f"id >= 100 and email = '{hashed(SECRET)}'").count() == 6_000

    # A hashed column is renamed: what would be in the clear now is not staged at all.
    staged = concealing.staged()
    database18.execute("alter table people rename email to mail")
    database18.execute(f"update wide set ssn = '{SECRET}', email = '{SECRET}' where id = 1")
    database18.execute(f"insert into people values (50, '{SECRET}', '{SECRET}', 'n', '{SECRET}')")
    failed = run_walgate(
        "replicate", "--until-current", "--debug",
        folder=concealing.folder, environment=concealing.environment,
    )  # fmt: skip
    outputs += [failed.stdout, failed.stderr]
    assert failed.exit_code == 2
    assert "does not send for public.people; mail may be that column renamed" in failed.stderr
    file = concealing.folder / "walgate.toml"
    file.write_text(file.read_text().replace('hash = ["email"]', 'hash = ["mail"]', 1))
    outputs.append(concealing.catch_up().stderr)
    assert concealing.staged() > staged
    assert find_secrets(concealing.folder) == []
    assert not [text for text in outputs if SECRET in text or KEY in text]


def test_nothing_is_concealed_without_a_rule(database18: Database, concealing: Pipeline) -> None:
    file = concealing.folder / "walgate.toml"
    file.write_text(file.read_text().replace(RULES, ""))
    change(database18, "people")
    concealing.catch_up()
    assert find_secrets(concealing.folder), "the search finds what is there"
