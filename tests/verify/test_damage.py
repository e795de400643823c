"""What was changed in the lake by hand is found to the key, healed, and equal again."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc_core.errors import Retry, SourceError
from cdc_core.settings import Settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import reread_keys
from orchestration.cli.main import run_command
from orchestration.cli.verify import ProgressLine
from orchestration.status.status import read_status
from orchestration.verification import healing
from orchestration.verification.answer import describe_verdict, format_verdict
from orchestration.verification.table_comparison import MAX_ROWS
from spark_jobs.target.result import WritePlan
from tests.fix_pipeline import Pipeline
from tests.fix_postgres import lend_database
from tests.postgres_server import Database, PostgresServer
from tests.spark.small_lake import MERGE_ONLY
from tests.verify.verifying import Verifying, make_verifying, read_results

# By column: its type, what every row has, and what a hand puts there.
KINDS = {
    "b": ("boolean", "true", "false"),
    "i2": ("int2", "7", "8S"),
    "i4": ("int4", "-7", "-8"),
    "i8": ("int8", "70", "80L"),
    "o": ("oid", "4294967295", "1L"),
    "f4": ("float4", "0.1", "float(0.1000001)"),
    "f8": ("float8", "5e-324", "double(9.9e-324)"),
    "zero": ("float8", "'-0'", "0d"),
    "raw": ("bytea", "'\\x00ff'", "x'00FE'"),
    "day": ("date", "'2024-02-29'", "date'2024-02-28'"),
    "local": ("timestamp", "'2024-02-29 12:00:00.1'", "timestamp_ntz'2024-02-29 12:00:00.100001'"),
    "at": ("timestamptz", "'2024-02-29 12:00:00.12+00'", "timestamp'2024-02-29 12:00:00.13Z'"),
    "fixed": ("numeric(12,2)", "1.50", "1.51bd"),
    "free": ("numeric", "0.000000000000000001", "0.000000000000000002bd"),
    "note": ("text", "'Grüße'", "'Grüsse'"),
    "doc": ("jsonb", """'{"a": [1, null]}'""", """'{"a": [1, 0]}'"""),
    "list": ("int4[]", "'{1,NULL,3}'", "array(1, 0, 3)"),
    "words": ("text[]", """'{a,"b c",NULL,"","NULL","q\\"\\\\"}'""", "array('a', 'b c')"),
    "points": ("float8[]", "'{0.1,NaN,NULL}'", "array(0.1d, null)"),
    "nothing": ("text", "null", "''"),
    "exact": ("numeric", "'NaN'", "1.0bd"),
}
ROWS = 25_000
_COLUMNS = ", ".join(f"{name} {kind}" for name, (kind, *_) in KINDS.items())
TABLES = f"""
    create table kinds (id bigint primary key, {_COLUMNS});
    create table skewed (id bigint primary key, note text);
    create table empty (id int primary key);
    create table bare (note text);
"""


@pytest.fixture
def verifying(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> Verifying:
    """Lend a lake that equals its source: values of every kind, and very uneven keys."""
    for statement in TABLES.split(";"):
        database18.execute(statement)
    lent = make_verifying(make_pipeline, database18, spark)
    values = ", ".join(kind[1] for kind in KINDS.values())
    database18.execute(f"insert into kinds select n, {values} from generate_series(1, 60) n")
    database18.execute(
        f"insert into skewed select n, 'note ' || n from generate_series(1, {ROWS}) n"
        " union all values (-9000000000000000000, 'low'), (9000000000000000000, 'high')"
    )
    lent.merge()
    return lent


def test_a_value_that_differs_from_the_text_kept_beside_it_is_found_and_healed(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    kinds = {
        "price": ("numeric", "19.90", "20bd"),
        "rate": ("numeric", "'Infinity'", "1bd"),
        "far": ("timestamp", "'infinity'", "timestamp_ntz'2024-01-01 00:00:00'"),
        "prices": ("numeric[]", "'{1.50,2}'", "array(1.5bd, 3bd)"),
        "grid": ("int[]", "'{{1,2},{3,4}}'", "array(1, 2)"),
    }
    columns = ", ".join(f"{name} {kind[0]}" for name, kind in kinds.items())
    database18.execute(f"create table kept (id int primary key, {columns}, i int)")
    verifying = make_verifying(make_pipeline, database18, spark)
    values = ", ".join(kind[1] for kind in kinds.values())
    database18.execute(f"insert into kept select n, {values}, n from generate_series(1, 20) n")
    verifying.merge()
    assert read_results(verifying.compare("kept").tables) == {"kept": "equal"}
    changed = [
        f"{name} = case when id = {i} then {kind[2]} else {name} end"
        for i, (name, kind) in enumerate(kinds.items(), 1)
    ]
    # A wrong text beside a right value, one that only repeats its value, and none where one was.
    raw = (
        "_raw = case id when 10 then map_concat(map('price', '5.10'), map_filter(_raw,"
        " (k, v) -> k != 'price')) when 11 then map_concat(_raw, map('i', '11'))"
        " when 12 then null else _raw end"
    )
    verifying.damage("kept", f"update {{}} set {', '.join([*changed, raw])}")
    verdict = verifying.heal("kept")
    found = {int(key[0] or 0) for keys in verdict.keys.values() for key in keys}
    assert found == {1, 2, 3, 4, 5, 10, 12}
    assert read_results(verdict.tables) == {"kept": "equal"}


def test_a_table_that_cannot_be_healed_keeps_no_other_from_it(
    verifying: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    verifying.damage("kinds", "delete from {} where id = 2")
    verifying.damage("skewed", "delete from {} where id = 25000")
    reread = reread_keys

    def refuse_one(settings: Settings, table: TableName, *args: Any, **more: Any) -> bool:
        if table.name == "kinds":
            raise SourceError("rows keep changing", fix="later", retry=Retry.LATER)
        return reread(settings, table, *args, **more)

    monkeypatch.setattr(healing, "reread_keys", refuse_one)
    results = read_results(verifying.heal("kinds", "skewed").tables)
    assert results.pop("kinds").startswith("different")
    assert results == {"skewed": "equal"}


def test_every_kind_of_damage_is_found_to_the_key_and_healed(
    verifying: Verifying, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = [
        f"`{name}` = case when id = {10 + i} then {kind[2]} else `{name}` end"
        for i, (name, kind) in enumerate(KINDS.items())
    ]
    raw = "_raw = case when id = 50 then map('exact', 'Infinity') else _raw end"
    holes = "_holes = case when id = 51 then array('note') else _holes end"
    verifying.damage("kinds", f"update {{}} set {', '.join([*changed, raw, holes])}")
    verifying.damage("kinds", "delete from {} where id = 2")
    verifying.damage("kinds", "update {} set id = 1000 where id = 3")
    verifying.damage("skewed", "update {} set note = 'other' where id in (5, 12000)")
    verifying.damage("skewed", "delete from {} where id = 25000")

    verdict = verifying.heal()
    assert {
        table.name: {int(key[0] or 0) for key in keys} for table, keys in verdict.keys.items()
    } == {
        "kinds": {10 + i for i in range(len(KINDS))} | {2, 3, 50, 51, 1000},
        "skewed": {5, 12_000, 25_000},
    }
    ranges = {one.table.name: one.ranges for one in verdict.tables}
    assert sum(one.holes for one in ranges["kinds"]) == 1
    assert sum(one.keys or 0 for one in ranges["skewed"]) == 3
    assert all(1 <= one.source_rows <= MAX_ROWS for one in ranges["skewed"])
    results = read_results(verdict.tables)
    assert results.pop("bare").startswith("skipped: it has no key")
    assert results.pop("empty").startswith("skipped: the lake holds no rows of public.empty")
    assert results == {"kinds": "equal", "skewed": "equal"}
    assert [one.healed for one in verdict.tables] == [False, False, True, True]
    told = describe_verdict(verdict)
    kinds, skewed = told["tables"][2:]
    assert (kinds["source"], kinds["source"]["rows"]) == (kinds["lake"], 60)
    assert [(one["keys"], one["source_rows"] - one["lake_rows"]) for one in skewed["ranges"]] == [
        (1, 0),
        (1, 0),
        (1, 1),
    ]
    for one, key in zip(skewed["ranges"], (5, 12_000, 25_000), strict=True):
        assert int(one["from"]) <= key <= int(one["to"])
    lines = [*format_verdict(verdict)]
    assert any(
        f"public.skewed  equal at {verdict.lsn}, {ROWS + 2:,} rows" in line for line in lines
    )

    through = {t["table"]: t["verified_lsn"] for t in read_status(verifying.settings)["tables"]}
    assert through["public.kinds"] == str(verdict.lsn)
    verifying.damage("kinds", "delete from {} where id = 4")
    # The command, in this process and its session.
    monkeypatch.setattr("orchestration.cli.main.start_logging", lambda *_, **__: None)
    monkeypatch.setattr("orchestration.runs.spark.open_spark", lambda _: verifying.session)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    config = str(verifying.pipeline.folder / "walgate.toml")
    capsys.readouterr()
    assert run_command(["verify", "public.kinds", "--config", config]) == 1
    said = capsys.readouterr()
    line, place = said.out.splitlines()
    assert re.match(
        r"public\.kinds  different at [0-9A-F]+/[0-9A-F]+, 60 rows, 59 in the lake, [\d.]+ s:"
        r" no backfill has read the whole table: .*; fix: walgate backfill public\.kinds$",
        line,
    )
    assert re.match(
        r" +keys -?\d+ to -?\d+: \d+ rows in the source, \d+ in the lake, 1 key differs$", place
    )
    # Of a terminal it is one line that changes, and nothing is left of it.
    _, first, *_, last, end = said.err.split("\r\x1b[K")
    assert (first, end) == ("opening a snapshot of the source", "")
    assert re.match(r"public\.kinds: comparing at [0-9A-F]+/[0-9A-F]+$", last)
    assert "\n" not in said.err
    told = read_status(verifying.settings)
    assert {t["table"]: t["verified_lsn"] for t in told["tables"]}["public.kinds"] is None
    assert "table_differs" in {problem["code"] for problem in told["problems"]}


def test_a_key_that_is_there_twice_is_found_and_healed(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute("create table double (id int primary key, v text)")
    verifying = make_verifying(make_pipeline, database18, spark)
    database18.execute("insert into double select n, 'a' from generate_series(1, 50) n")
    verifying.merge()
    verifying.damage("double", "insert into {} by name select * from {} where id in (7, 9)")
    assert verifying.find_keys("double")["double"] == {("7",), ("9",)}
    assert read_results(verifying.heal("double").tables) == {"double": "equal"}
    (done,) = verifying.merge(limits=MERGE_ONLY)
    assert done.tables["public.double"].way is WritePlan.MERGE
    rows = verifying.session.read.format("delta").load(
        str(verifying.lake.locate(TableName("public", "double")))
    )
    assert rows.count() == 50
    assert verifying.find_keys("double") == {}


def test_a_key_text_that_is_not_that_of_its_row_is_found_and_healed(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    """A merge finds a row by this text: by another one, its next change would double the row."""
    database18.execute(
        "create table texts (n numeric, f float8, at timestamptz, v text, primary key (n, f, at))"
    )
    verifying = make_verifying(make_pipeline, database18, spark)
    database18.execute(
        "insert into texts select n * 1.50, n / 10.0, to_timestamp(n / 3.0), 'a'"
        " from generate_series(1, 6) n union all select 'NaN', 'NaN', 'infinity', 'a'"
    )
    verifying.merge()
    assert verifying.find_keys("texts") == {}
    verifying.damage("texts", "update {} set _key = null where n = 1.50")
    verifying.damage("texts", "update {} set _key = replace(_key, '3.00', '3.0') where n = 3")
    verifying.damage("texts", "update {} set _key = replace(_key, ',', ', ') where n = 4.50")
    assert verifying.find_keys("texts")["texts"]
    assert read_results(verifying.heal("texts").tables) == {"texts": "equal"}
    database18.execute("update texts set v = 'b' where n <= 4.50")
    verifying.merge()
    assert verifying.find_keys("texts") == {}


def test_what_is_being_done_is_a_line_each_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = ProgressLine()
    line.tell("opening a snapshot of the source")
    line.erase()
    assert capsys.readouterr().err == "verify: opening a snapshot of the source\n"


@pytest.mark.soak
def test_keys_that_sort_unlike_in_spark_are_compared_by_their_hash(
    postgres15: PostgresServer, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    with lend_database(postgres15) as database:
        database.execute('create table words (k text collate "en-US-x-icu" primary key, v int)')
        database.execute(
            "create table pairs (a text, b int, at timestamptz, primary key (a, b, at))"
        )
        database.execute("create table ids (id uuid primary key, v float8)")
        database.execute(
            "create table filtered (id int primary key, kind text, ssn text, mail text)"
        )
        lent = make_verifying(make_pipeline, database, spark)
        database.execute("drop publication walgate")
        database.execute(
            "create publication walgate for table words, pairs, ids,"
            " filtered (id, kind, ssn, mail) where (kind <> 'hidden')"
        )
        # No slot was there yet: the stream never tells of it.
        database.execute("insert into words values ('before', 0)")
        lent.pipeline.make_slot_again()
        with (lent.pipeline.folder / "walgate.toml").open("a") as opened:
            opened.write('[tables."public.filtered"]\nexclude = ["ssn"]\nhash = ["mail"]\n')
        lent.pipeline.environment["WALGATE_HASH_KEY"] = "0123" * 16
        database.execute(
            "insert into words values ('a', 1), ('A', 2), ('b', 3), ('B', 4), ('é', 5), ('z', 6),"
            " (E'tab\\t\\n\\\\', 7), ('', 8), ('10', 9), ('9', 10), ('co-op', 11), ('coop', 12)"
        )
        database.execute(
            "insert into pairs select k, v, t from words,"
            " unnest(array['2024-01-01 00:00:00.1+00', 'infinity']::timestamptz[]) t"
        )
        database.execute(
            "insert into ids select gen_random_uuid(), n / 7.0 from generate_series(1, 99) n"
        )
        database.execute(
            "insert into filtered"
            " select n, case when n % 2 = 0 then 'hidden' else 'seen' end, 's', 'm'"
            " from generate_series(1, 20) n"
        )
        lent.merge()
        lent.damage("words", "delete from {} where k in ('a', 'co-op')")
        lent.damage("words", "update {} set k = 'C' where k = 'b'")
        lent.damage("pairs", "delete from {} where a = 'A'")
        lent.damage("filtered", "delete from {} where id = 1")
        ids = sorted(key for (key,) in database.query("select id::text from ids"))
        lent.damage("ids", f"update {{}} set v = -v where id = '{ids[0]}'")
        verdict = lent.heal()
        keys = {table.name: listed for table, listed in verdict.keys.items()}
        assert keys["words"] == {("a",), ("co-op",), ("b",), ("C",), ("before",)}
        moments = ("2024-01-01 00:00:00.1+00", "infinity")
        assert keys["pairs"] == {("A", "2", moment) for moment in moments}
        assert keys["ids"] == {(ids[0],)}
        assert keys["filtered"] == {("1",)}
        results = read_results(verdict.tables)
        assert results.pop("filtered") == "equal: hashed, compared for NULL only: mail"
        assert results == dict.fromkeys(("words", "pairs", "ids"), "equal")
        ranges = {t["table"]: t["ranges"] for t in describe_verdict(verdict)["tables"]}
        (of_ids,) = ranges["public.ids"]
        assert of_ids["from"] <= ids[0] <= of_ids["to"]
        assert {one["from"] for one in ranges["public.words"]} == {None}
        assert sum(one["keys"] for one in ranges["public.words"]) == 5
