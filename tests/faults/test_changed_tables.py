"""F17, F18, F23: tables and publications that change, while capture runs and before it runs again.

A table is right, or it has halted just before the change with its reason; never anything else.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.vocabulary import TableName
from spark_jobs.lake.lake import Lake
from spark_jobs.lake.ledger import read_states
from spark_jobs.merge.rounds import merge_until
from spark_jobs.schema.evolution import Halt, TableSchema, accept_first, evolve
from tests.faults.table_changes import CHANGES, Change
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.lakes import path_of
from tests.postgres_server import Database, PostgresServer
from tests.walgate_command import run_walgate

# Happens while a capture streams; while none runs, so that the catalog is ahead of the stream.
LIVE, LATE = "live", "late"
# Merged whatever the extent; of the others the log is followed.
MERGED = ("added", "renamed_column", "made_again", "left")
Rows = list[dict[str, Any]]


@dataclass
class Place:
    """A case in a mode: its table, and the rows it had before."""

    change: Change
    mode: str
    before: Rows = field(default_factory=list)

    @property
    def schema(self) -> str:
        """Give a published schema, or one whose tables are published by name."""
        return f"{'whole' if self.change.named is None else 'named'}_{self.mode}"

    @property
    def table(self) -> str:
        """Give its name."""
        return str(TableName(self.schema, self.change.name))

    def write(self, text: str) -> str:
        """Put the names in."""
        return text.replace("{t}", self.table).replace("{s}", self.schema).replace(
            "{n}", self.change.name
        ).replace("{p}", self.mode)  # fmt: skip


def run(database: Database, *statements: str) -> None:
    """Run statements on one connection, each by itself."""
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def read_rows(database: Database, table: str) -> Rows:
    """Give the rows of a table of the source."""
    rows = database.query(f"select to_json(t)::text from {table} t")
    return in_order(json.loads(row[0]) for row in rows)


def read_published_rows(database: Database, place: Place) -> Rows:
    """Give the rows of a table of the source, in the columns that are published."""
    ((names,),) = database.query(
        "select attnames from pg_publication_tables"
        f" where (schemaname, tablename) = ('{place.schema}', '{place.change.name}')"
    )
    rows = read_rows(database, place.table)
    return in_order({name: row[name] for name in names} for row in rows)


def in_order(rows: Iterable[dict[str, Any]]) -> Rows:
    """Sort rows, whatever the order of their columns."""
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))


def make(places: list[Place], pipeline: Pipeline) -> None:
    """Make tables and publications, then the slot."""
    members = defaultdict[str, list[str]](list)
    statements = ["drop publication walgate"]
    statements += [f"create schema {schema}" for schema in sorted({p.schema for p in places})]
    for place in places:
        statements.append(f"create table {place.table} {place.change.columns}")
        if place.change.named:
            name, _, carried = place.write(place.change.named).partition(" ")
            members[name].append(f"{place.table} {carried}")
    whole = sorted({place.schema for place in places if place.change.named is None})
    statements.append(f"create publication walgate for tables in schema {', '.join(whole)}")
    statements += [f"create publication {n} for table {', '.join(t)}" for n, t in members.items()]
    run(pipeline.database, *statements)
    pipeline.make_slot_again()
    names = json.dumps(["walgate", *members])
    pipeline.environment = {"WALGATE_SOURCE__PUBLICATION": names}


def happen(places: list[Place], database: Database, mode: str) -> None:
    """Let it happen to the tables of a mode."""
    for place in places:
        if place.mode == mode:
            statements = place.write(place.change.happens).split(";")
            followed = place.change.followed if mode == LIVE else 0
            run(database, *statements[:followed])
            place.before = read_rows(database, place.table)
            run(database, *statements[followed:])


def replay(pipeline: Pipeline) -> None:
    """Stage what is there, killed on both sides of a commit."""
    for point in ("before_delta_commit", "after_delta_commit"):
        child = pipeline.start(WALGATE_CRASH_AT=point)
        assert child.wait() < 0, child.output()
    pipeline.catch_up()


def read_lake(session: SparkSession, lake: Lake, places: list[Place]) -> dict[str, Rows]:
    """Give the rows of every table, in one job."""
    found: dict[str, Rows] = {}
    texts = None
    for place in places:
        path = lake.locate(TableName(place.schema, place.change.name))
        if path.exists():
            found[place.table] = []
            table = session.read.format("delta").load(str(path))
            columns = ", ".join(f"`{c}`" for c in table.columns if not c.startswith("_"))
            json_text = f"to_json(struct({columns}), map('ignoreNullFields', 'false')) as row"
            rows = table.selectExpr(f"'{place.table}' as name", json_text)
            texts = rows if texts is None else texts.union(rows)
    assert texts is not None
    for row in texts.collect():
        found[row["name"]].append(json.loads(row["row"]))
    return {name: in_order(rows) for name, rows in found.items()}


def find_halts(lake: Lake) -> dict[str, Halt]:
    """Follow the log through delta-rs alone; give the tables that halt."""
    relations = lake.read_relations()
    columns = ["commit_lsn", "seq", "table", "relation_version"]
    log = DeltaTable(path_of(lake.changes)).to_pyarrow_table(columns=columns).sort_by(
        [("commit_lsn", "ascending"), ("seq", "ascending")]
    )  # fmt: skip
    shapes: dict[str, TableSchema] = {}
    halts: dict[str, Halt] = {}
    for _, _, table, version in zip(*(log.column(c).to_pylist() for c in columns), strict=True):
        if version is None or table in halts:
            continue
        relation, shape = relations[version], shapes.get(table)
        following = accept_first(relation) if shape is None else evolve(shape, relation)
        if isinstance(following, Halt):
            halts[table] = following
        else:
            shapes[table] = following
    return halts


def explain_halt(place: Place, halts: Mapping[str, Halt]) -> str | None:
    """Say what is wrong with whether and why a table halts, if anything is."""
    halt, wanted = halts.get(place.table), place.change.reason
    if halt is None or wanted is None:
        is_right = halt is None and wanted is None
    else:
        is_right = wanted in halt.reason and bool(halt.fix)
    return None if is_right else f"expected {wanted!r}, found {halt}"


def explain_rows(place: Place, found: Rows | None, database: Database) -> str | None:
    """Say what is wrong with a table's rows: of before where it halted or left, else of now."""
    keeps = place.change.reason or place.change.is_left
    expected = place.before if keeps else read_rows(database, place.table)
    if keeps and found:
        # What a column list leaves out.
        expected = [{name: row[name] for name in found[0]} for row in expected]
    return None if found == expected else f"expected {expected}, found {found}"


@pytest.fixture
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Lend the server of a version."""
    lent: PostgresServer = request.getfixturevalue(f"postgres{request.param}")
    return lent


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Database]:
    """Lend a database on it."""
    with lend_database(server) as database:
        yield database


@pytest.mark.parametrize(
    ("server", "extent"),
    [
        # Each case in one mode, in both, and in both with every table merged.
        pytest.param(18, "once", marks=pytest.mark.timeout(600)),
        pytest.param(18, "whole", marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
        pytest.param(15, "twice", marks=[pytest.mark.soak, pytest.mark.timeout(600)]),
    ],
    indirect=["server"],
)
def test_f17_f18_f23_a_changed_table_is_right_or_halts_with_its_reason(
    database: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    extent: str,
) -> None:
    places = [
        Place(change, mode)
        for change in CHANGES
        for mode in (LIVE, LATE)
        if extent != "once" or (mode == LATE) == (change.row == "f17")
    ]
    pipeline = make_pipeline(database)
    make(places, pipeline)
    child = pipeline.start_streaming()
    filled = [place for place in places if place.change.is_filled]
    run(
        database,
        *(f"insert into {place.table} (id, v) values (1, 'a')" for place in filled),
    )
    pipeline.wait_until_staged(pipeline.current_lsn())
    happen(places, database, LIVE)
    pipeline.wait_until_staged(pipeline.current_lsn())
    pipeline.finish(child)
    happen(places, database, LATE)
    replay(pipeline)

    session = spark.newSession()
    lake = Lake(pipeline.lake)
    halts = find_halts(lake)
    wrong = {place.table: explain_halt(place, halts) for place in places}
    assert {table: why for table, why in wrong.items() if why} == {}
    merged = [place for place in places if extent == "whole" or place.change.name in MERGED]
    merge_until(session, lake, round_rows=1_000_000, tables={place.table for place in merged})
    stopped = {t: s.reason for t, s in read_states(lake).items() if s.state == "halted"}
    assert stopped == {p.table: halts[p.table].reason for p in merged if p.table in halts}
    found = read_lake(session, lake, merged)
    wrong = {p.table: explain_rows(p, found.get(p.table), database) for p in merged}
    assert {table: why for table, why in wrong.items() if why} == {}

    answer = run_walgate(
        "status", "--json", folder=pipeline.folder, environment=pipeline.environment
    )
    told = [
        p["what"] for p in json.loads(answer.stdout)["problems"] if "not published" in p["what"]
    ]
    assert sorted(what.split()[0] for what in told) == sorted(
        place.table for place in places if place.change.is_left
    )

    # The remedy of a halt: nothing of the transaction that made the table again is missing.
    (again,) = [p for p in places if (p.change.name, p.mode) == ("made_again", LIVE)]
    shutil.rmtree(path_of(lake.locate(TableName(again.schema, again.change.name))))
    merge_until(session, lake, round_rows=1_000_000, tables={again.table})
    assert read_lake(session, lake, [again])[again.table] == read_rows(database, again.table)
    assert read_states(lake)[again.table].state == "streaming"

    # The other remedy, which is queued by itself: each is read whole, and begins anew by it.
    cured = [place for place in merged if place.table in halts and place is not again]
    assert all(halts[place.table].curable for place in cured)
    answer = run_walgate(
        "backfill",
        *(place.table for place in cured),
        folder=pipeline.folder,
        environment=pipeline.environment,
    )
    assert answer.exit_code == 0, answer
    merge_until(session, lake, round_rows=1_000_000, tables={place.table for place in cured})
    found = read_lake(session, lake, cured)
    assert {read_states(lake)[place.table].state for place in cured} == {"streaming"}
    expected = {place.table: read_published_rows(database, place) for place in cured}
    assert found == expected


@pytest.mark.parametrize("server", [pytest.param(15, marks=pytest.mark.soak), 18], indirect=True)
def test_f23_a_publication_that_is_gone_ends_capture_before_more_is_left_out(
    database: Database, make_pipeline: Callable[..., Pipeline]
) -> None:
    database.execute("create table orders (id int primary key)")
    pipeline = make_pipeline(database)
    child = pipeline.start_streaming()
    database.execute("drop publication walgate")
    assert child.wait() == 4, child.output()
    assert "publication walgate does not exist" in child.output()
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    assert answer.exit_code == 4, answer
    assert "publication walgate does not exist" in answer.complaints[-1]
    assert "fix: " in answer.complaints[-1]
    database.execute("insert into orders values (1)")
    database.execute("create publication walgate for all tables")
    answer = run_walgate("replicate", "--until-current", folder=pipeline.folder)
    # From version 18 on the server skips what it cannot publish: the table halts (published_anew).
    assert answer.exit_code == (4 if database.server.version < 18 else 0), answer
    assert database.server.version >= 18 or "SQLSTATE 42704" in answer.complaints[-1]
