"""`exclude`, `hash` or the hash key changed later: no table mixes rows of two rules unnoticed."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cdc_core.errors import ConfigurationError
from cdc_core.table_states import TableState
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from spark_jobs.lake.completeness import read_completeness
from spark_jobs.lake.ledger import find_cut, read_states
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database
from tests.verify.verifying import Verifying, make_verifying, read_results

TABLE = TableName("public", "people")
ROWS = 5
OLD_KEY, NEW_KEY = "0" * 64, "1" * 64
HASH, EXCLUDE = 'hash = ["email"]', 'exclude = ["email"]'

# The rule and the hash key before and after, what verification and the halted table say.
CHANGES = {
    "hash added": ("", OLD_KEY, HASH, OLD_KEY, "is now hashed, but older rows have"),
    "hash removed": (HASH, OLD_KEY, "", OLD_KEY, "is no longer hashed"),
    "hash key changed": (HASH, OLD_KEY, HASH, NEW_KEY, "is now hashed with another key"),
    "exclude added": ("", OLD_KEY, EXCLUDE, OLD_KEY, "is now excluded"),
    "exclude removed": (EXCLUDE, OLD_KEY, "", OLD_KEY, "is no longer excluded"),
}


def set_rule(pipeline: Pipeline, rule: str, key: str, *, tables: str = "public.people") -> None:
    """Write a rule in the place of the one before."""
    file = pipeline.folder / "walgate.toml"
    kept = file.read_text().split("[tables.")[0]
    file.write_text(kept + (f'[tables."{tables}"]\n{rule}\n' if rule else ""))
    pipeline.environment["WALGATE_HASH_KEY"] = key


def read_whole(verifying: Verifying) -> None:
    """Read the table whole, as the queue of Dagster does, and merge."""
    run_backfills(
        verifying.settings, [TABLE], chunk_rows=2, parallel=1, stop=threading.Event(), is_anew=True
    )
    verifying.merge()


def read_emails(verifying: Verifying) -> dict[int, str | None] | None:
    """The column by the key; None where the table has no such column."""
    table = verifying.session.read.format("delta").load(str(verifying.lake.locate(TABLE)))
    if "email" not in table.columns:
        return None
    return {row["id"]: row["email"] for row in table.collect()}


def expect_emails(rule: str, key: str) -> dict[int, str | None] | None:
    """What the lake must have under a rule."""
    if rule == EXCLUDE:
        return None
    emails = {n: f"mail {n}" for n in range(1, ROWS + 1)}
    if rule == HASH:
        return {
            n: hmac.new(key.encode(), mail.encode(), hashlib.sha256).hexdigest()
            for n, mail in emails.items()
        }
    return {**emails}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(name, marks=() if name.endswith("added") else pytest.mark.soak)
        for name in CHANGES
    ],
)
def test_a_changed_rule_is_never_called_equal_halts_the_table_and_is_cured_by_a_whole_read(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    spark: SparkSession,
    change: str,
) -> None:
    rule, key, new_rule, new_key, said = CHANGES[change]
    database18.execute("create table people (id int primary key, note text, email text)")
    database18.execute(
        "insert into people select n, 'old', 'mail ' || n from generate_series(1, %s) n", [ROWS]
    )
    verifying = make_verifying(make_pipeline, database18, spark)
    set_rule(verifying.pipeline, rule, key)
    read_whole(verifying)
    assert verifying.compare("people").tables[0].result == "equal"
    assert read_emails(verifying) == expect_emails(rule, key)

    # The same rule after a restart of capture: nothing halts.
    database18.execute("update people set note = 'same rule' where id = 1")
    verifying.merge()
    assert verifying.compare("people").tables[0].result == "equal"

    set_rule(verifying.pipeline, new_rule, new_key)
    # No row has changed yet, so the log knows nothing of the new rule.
    found = read_results(verifying.compare("people").tables)["people"]
    assert found.startswith("skipped: ")
    assert said in found
    assert "walgate backfill public.people" in found

    database18.execute("update people set note = 'new rule' where id = 2")
    verifying.merge()
    state = read_states(verifying.lake)[str(TABLE)]
    assert (state.state, state.curable) == (TableState.HALTED, True)
    assert read_emails(verifying) == expect_emails(rule, key), "no row of the new rule is there"
    cut = find_cut(verifying.lake)
    assert cut is not None
    need = read_completeness(verifying.lake).find_backfill_need(str(TABLE), state, cut.bound)
    assert need is not None
    assert need.state is TableState.QUEUED
    assert read_results(verifying.compare("people").tables)["people"].startswith("skipped: halted")

    read_whole(verifying)
    assert read_emails(verifying) == expect_emails(new_rule, new_key)
    assert verifying.compare("people").tables[0].result == "equal"
    database18.execute("update people set note = 'after' where id = 3")
    verifying.merge()
    assert verifying.compare("people").tables[0].result == "equal"


@pytest.mark.parametrize(
    ("staged", "read", "reason"),
    [
        (EXCLUDE, "", "column email was read, but capture excludes it"),
        (HASH, "", "column email does not have the hash rule of capture"),
        ("", HASH, "column email does not have the hash rule of capture"),
        ("", EXCLUDE, "column email was left out, but capture stages it"),
    ],
)
def test_what_was_read_under_another_rule_than_capture_s_never_enters_the_log(
    database18: Database,
    make_pipeline: Callable[..., Pipeline],
    staged: str,
    read: str,
    reason: str,
) -> None:
    database18.execute("create table people (id int primary key, note text, email text)")
    database18.execute(
        "insert into people select n, 'old', 'mail ' || n from generate_series(1, %s) n", [ROWS]
    )
    pipeline = make_pipeline(database18)
    set_rule(pipeline, staged, OLD_KEY)
    pipeline.start_streaming()
    database18.execute("update people set note = 'new' where id = 1")
    pipeline.wait_until_staged(pipeline.current_lsn())
    set_rule(pipeline, read, OLD_KEY)
    with pytest.raises(ConfigurationError, match=f"public.people: {reason}") as caught:
        run_backfills(
            pipeline.load_settings(), [TABLE], chunk_rows=2, parallel=1, stop=threading.Event()
        )
    assert "restart capture" in str(caught.value.fix)
    rows = DeltaTable(pipeline.root / "staging" / "changes").to_pyarrow_table().to_pylist()
    assert {row["op"] for row in rows if row["table"] == "public.people"} == {"update"}


def test_an_idle_table_whose_rule_changed_is_cured_by_one_whole_read(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute("create table people (id int primary key, note text, email text)")
    database18.execute(
        "insert into people select n, 'old', 'mail ' || n from generate_series(1, %s) n", [ROWS]
    )
    verifying = make_verifying(make_pipeline, database18, spark)
    set_rule(verifying.pipeline, HASH, OLD_KEY)
    read_whole(verifying)
    set_rule(verifying.pipeline, HASH, NEW_KEY)
    read_whole(verifying)
    assert read_emails(verifying) == expect_emails(HASH, NEW_KEY)
    assert verifying.compare("people").tables[0].result == "equal"


def test_a_column_that_was_excluded_when_it_was_added_is_no_new_one_later(
    database18: Database, make_pipeline: Callable[..., Pipeline], spark: SparkSession
) -> None:
    database18.execute("create table people (id int primary key, note text)")
    database18.execute("insert into people select n, 'old' from generate_series(1, %s) n", [ROWS])
    verifying = make_verifying(make_pipeline, database18, spark)
    set_rule(verifying.pipeline, EXCLUDE, OLD_KEY, tables="public.*")
    read_whole(verifying)
    # The table in the lake has been there for longer than the column.
    database18.execute("alter table people add column email text")
    database18.execute("update people set email = 'mail ' || id")
    verifying.merge()
    assert verifying.compare("people").tables[0].result == "equal"
    set_rule(verifying.pipeline, "", OLD_KEY)
    found = read_results(verifying.compare("people").tables)["people"]
    assert found.startswith("skipped: ")
    assert "is no longer excluded" in found
    database18.execute("update people set note = 'new rule' where id = 2")
    verifying.merge()
    assert read_states(verifying.lake)[str(TABLE)].state is TableState.HALTED
    read_whole(verifying)
    assert read_emails(verifying) == expect_emails("", OLD_KEY)
    # A column that is truly new follows without a halt.
    database18.execute("alter table people add column age int default 7")
    assert verifying.compare("people").tables[0].result == "equal"
    database18.execute("update people set note = 'after' where id = 3")
    verifying.merge()
    assert verifying.compare("people").tables[0].result == "equal"
