"""`walgate merge` and `walgate sql` as processes: answers on standard output, errors in a line."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from tests.fix_postgres import lend_database
from tests.fix_spark import STATE_FOLDER, find_java, quick_spark
from tests.postgres_server import PostgresServer
from tests.requirement import report_missing
from tests.walgate_command import run_walgate

# One process fills the lake that all of these read.
pytestmark = pytest.mark.xdist_group("sql")

CANARY = "c4n4ry"


@pytest.fixture(scope="module")
def folder(
    postgres_any: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Lend a pipeline whose lake holds two merged tables."""
    if find_java() is None or not (STATE_FOLDER / "jars").is_dir():
        report_missing("Java or the Delta JARs", "run `make setup`")
    home = tmp_path_factory.mktemp("pipeline")
    with lend_database(postgres_any) as database:
        database.execute("create table orders (id bigint primary key, note text, paid bytea)")
        database.execute('create schema "Odd s"')
        database.execute('create table "Odd s"."T~1" (id int primary key, "a b" text)')
        arguments = ["--dsn", database.dsn, "--slot", f"s_{database.name}", "--create"]
        assert run_walgate("init", *arguments, folder=home).exit_code == 0
        with (home / "walgate.toml").open("a") as file:
            file.write("\n".join(quick_spark()))
        database.execute(
            "insert into orders values"
            " (1, %s, '\\x00ff'), (2, E'a\\tb\\nc\\\\d', null), (3, '', '')",
            [CANARY],
        )
        database.execute("""insert into "Odd s"."T~1" values (7, 'x,"y"')""")
        assert run_walgate("replicate", "--until-current", folder=home).exit_code == 0
        merged = run_walgate("merge", folder=home)
        assert merged.exit_code == 0, merged
        assert merged.stdout == ""
        assert "info round merged cut=" in merged.stderr
        assert "waited_seconds=" in merged.stderr
        assert "info table merged table=public.orders way=rewrite " in merged.stderr
        assert CANARY not in merged.stderr
        yield home


def test_rows_come_as_copy_would_write_them(folder: Path) -> None:
    query = "select id, note, paid from orders order by id"
    answer = run_walgate("sql", query, folder=folder)
    assert answer.exit_code == 0, answer
    # No backfill was done: that rows may be missing is said beside the answer.
    (line,) = answer.stderr.splitlines()
    assert "table partial table=public.orders state=queued" in line
    assert answer.stdout.splitlines() == [
        "id\tnote\tpaid",
        f"1\t{CANARY}\t\\\\x00ff",
        "2\ta\\tb\\nc\\\\d\t\\N",
        "3\t\t\\\\x",
    ]


def test_odd_names_and_csv(folder: Path) -> None:
    query = "select id, `a~20b` from `Odd s`.`T~1`"
    answer = run_walgate("sql", query, "--format", "csv", "--at", "live", folder=folder)
    assert answer.exit_code == 0, answer
    assert list(csv.reader(io.StringIO(answer.stdout))) == [["id", "a~20b"], ["7", 'x,"y"']]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("insert into orders select * from orders", "begins with insert"),
        ("select cast(note as int) from orders where id = 1", "CAST_INVALID_INPUT"),
    ],
)
def test_a_statement_that_is_refused_is_one_line(folder: Path, query: str, words: str) -> None:
    answer = run_walgate("sql", query, folder=folder)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    # What may lack rows is named before.
    *_, line = answer.stderr.splitlines()
    assert words in line
    assert "fix: " in line
    assert CANARY not in line


def test_a_malformed_point_exits_with_2(folder: Path) -> None:
    answer = run_walgate("sql", "select 1", "--at", "yesterday", folder=folder)
    assert answer.exit_code == 2
    (line,) = answer.stderr.splitlines()
    assert "--at 'yesterday' is not a point of the log: expected latest, live, an LSN" in line


def test_a_time_reads_the_transactions_up_to_it(folder: Path) -> None:
    log = DeltaTable(folder / "lake" / "staging" / "changes").to_pyarrow_table()
    of_orders = log.filter(pc.equal(log["table"], "public.orders"))
    committed_at = pc.max(of_orders["committed_at"]).as_py()
    query = "select count(*) from orders where (select count(*) from `Odd s`.`T~1`) >= 0"
    answer = run_walgate("sql", query, "--at", committed_at.isoformat(), folder=folder)
    assert answer.exit_code == 4
    # Its only row came a transaction later.
    assert 'the lake holds no rows of "Odd s"."T~1" at ' in answer.stderr


def test_a_time_after_the_newest_log_time_exits_with_3(folder: Path) -> None:
    answer = run_walgate("sql", "select 1", "--at", "9999-01-01", folder=folder)
    assert answer.exit_code == 3
    (line,) = answer.stderr.splitlines()
    assert "cannot be read at 9999-01-01T00:00:00Z yet: the log is complete only before" in line


def test_without_java_the_fix_is_named(folder: Path, tmp_path: Path) -> None:
    environment = {"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    answer = run_walgate("sql", "select 1", folder=folder, environment=environment)
    assert answer.exit_code == 4
    (line,) = answer.stderr.splitlines()
    assert "Spark did not start" in line
    assert "JAVA_HOME" in line
