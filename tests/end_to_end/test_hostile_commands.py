"""Every command and every path of reading takes schemas, tables, columns and keys of any name."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import SparkSession

from cdc_core.settings import Settings, load_settings
from cdc_core.staging.epochs import read_newest_epoch
from cdc_core.vocabulary import TableName, encode_name
from orchestration.backfill.backfill import reread_keys
from orchestration.status.status import read_status
from orchestration.verification.healing import verify_and_heal
from spark_jobs.lake.lake import Lake
from spark_jobs.merge.rounds import merge_until
from tests.end_to_end.test_hostile_names import ALL, FEW, KEY, PUBLICATION, make_hostile
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.walgate_command import Answer, run_walgate

ROWS = 5
# Names that a statement with parameters, or a format, would take for its own.
ONE = FEW[-1:]


class Named:
    """A pipeline of tables of any name, and the commands that a test gives."""

    def __init__(self, database: Database, pipeline: Pipeline, session: SparkSession) -> None:
        """Nothing is staged yet."""
        self.database = database
        self.pipeline = pipeline
        self.session = session

    @property
    def settings(self) -> Settings:
        """The configuration."""
        return load_settings(self.pipeline.folder / "walgate.toml", self.pipeline.environment)

    def run(self, *arguments: str) -> Answer:
        """Give a command that must succeed."""
        answer = run_walgate(*arguments, folder=self.pipeline.folder)
        assert answer.exit_code == 0, (arguments, answer)
        return answer

    def change(self, table: TableName, statement: str) -> None:
        """Change a table; the statement has `{t}`, `{k}` and `{c}`, one of its columns."""
        names = {"t": (table.schema, table.name), "k": (KEY,), "c": ("100%",)}
        with psycopg.connect(self.database.dsn, autocommit=True) as connection:
            found = {name: sql.Identifier(*parts) for name, parts in names.items()}
            connection.execute(sql.SQL(statement).format(**found))

    def merge(self) -> None:
        """Stage and merge all that is committed."""
        self.pipeline.catch_up()
        (*_, done) = merge_until(self.session, Lake.of(self.settings), round_rows=1_000_000)
        assert not done.halted

    def compare(self, tables: list[TableName], *, is_healing: bool = False) -> dict[TableName, str]:
        """Compare tables with the source; what was found of each."""
        verdict = verify_and_heal(
            self.settings,
            self.session,
            tables,
            is_healing=is_healing,
            stop=threading.Event(),
            tell=lambda _: None,
        )
        return {found.table: found.reason or found.result for found in verdict.tables}


def publish_later(named: Named) -> None:
    """Make publication and slot again, without any table."""
    with psycopg.connect(named.database.dsn, autocommit=True) as connection:
        publication = sql.Identifier(PUBLICATION)
        connection.execute(sql.SQL("drop publication {}").format(publication))
        connection.execute(sql.SQL("create publication {}").format(publication))
    named.pipeline.make_slot_again()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "tables",
    [
        pytest.param(ONE, id="one"),
        pytest.param(FEW, id="few", marks=pytest.mark.soak),
        pytest.param(ALL, id="all", marks=pytest.mark.soak),
    ],
)
def test_every_command_and_every_path_takes_names_of_any_spelling(
    database18: Database, pipeline: Pipeline, spark: SparkSession, tables: list[tuple[str, str]]
) -> None:
    make_hostile(database18, pipeline, tables)
    named = Named(database18, pipeline, spark.newSession())
    listed = [TableName(*table) for table in tables]
    texts = [str(table) for table in listed]
    for table in listed:
        named.change(
            table,
            f"insert into {{t}} ({{k}}, {{c}}) select n, n::text from generate_series(1, {ROWS}) n",
        )
    publish_later(named)
    named.pipeline.catch_up()
    named.run("publish", *texts)
    assert named.run("check").exit_code == 0

    done = named.run("backfill", "--dry-run", *texts)
    assert len(done.stdout.splitlines()) >= len(listed)
    named.run("backfill", *texts)
    named.merge()
    assert named.compare(listed) == dict.fromkeys(listed, "equal")

    # A part of a table: by keys, by a condition; and single keys, as holes are filled.
    for table, text in zip(listed, texts, strict=True):
        named.run("backfill", text, "--from", "2", "--to", "4")
        named.run("backfill", text, "--where", f'"100%" like \'2%\' and "{"n" * 63}" is null')
        assert reread_keys(named.settings, table, [("1",), ("99",)], stop=threading.Event())
        named.change(table, "update {t} set {c} = 'a %s b' where {k} = 3")
        named.change(table, "delete from {t} where {k} = 5")
    named.merge()
    assert named.compare(listed) == dict.fromkeys(listed, "equal")

    for table in listed:
        path = Lake.of(named.settings).locate(table)
        column, key = encode_name("100%"), encode_name(KEY)
        named.session.sql(f"update delta.`{path}` set `{column}` = 'damaged' where `{key}` = 2")
    assert set(named.compare(listed).values()) == {"different"}
    assert named.compare(listed, is_healing=True) == dict.fromkeys(listed, "equal")

    # The slot is lost: a new epoch, every table read again.
    database18.query("select pg_drop_replication_slot(%s)", [pipeline.slot])
    for table in listed:
        named.change(table, "update {t} set {c} = 'unseen' where {k} = 4")
    named.run("recover", "--yes")
    epoch = read_newest_epoch(pipeline.lake)
    assert epoch is not None
    assert epoch.epoch == 2
    named.run("backfill", "--all")
    named.merge()
    assert named.compare(listed) == dict.fromkeys(listed, "equal")
    assert {one["table"] for one in read_status(named.settings)["tables"]} == set(texts)
    assert named.run("backfill").stdout == ""
