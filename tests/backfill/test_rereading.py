"""Single keys read again: their rows as they are, and keys that have none any more."""

from __future__ import annotations

import threading

import pytest

from cdc_core.errors import ConfigurationError
from cdc_core.settings import Settings, load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import reread_keys
from tests.backfill.folded_log import fold, read_changes, read_source
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

T = TableName("public", "t")


def load(pipeline: Pipeline) -> Settings:
    """Load the pipeline's settings."""
    return load_settings(pipeline.folder / "walgate.toml", {"WALGATE_HASH_KEY": "0123" * 16})


@pytest.mark.parametrize("identity", ["default", "full"])
def test_keys_arrive_as_they_are_or_as_deleted(
    database18: Database, pipeline: Pipeline, identity: str
) -> None:
    hostile = ["it's", 'a"b', "", "a,b\n(c)", "%s", "é", "\\N"]
    database18.execute("create table t (note text, id int, name text, primary key (name, id))")
    database18.execute(f"alter table t replica identity {identity}")
    for number, name in enumerate(hostile):
        database18.execute("insert into t values (%s, %s, %s)", [name, number, name])
    gone = [("never there", "7"), ("it's", "99")]
    keys = [(name, str(number)) for number, name in enumerate(hostile)]
    assert reread_keys(load(pipeline), T, [*keys, *gone], stop=threading.Event())
    read = read_changes(pipeline.root, str(T), "read")
    assert sorted(entry["values"] for entry in read) == sorted(
        [name, str(number), name] for number, name in enumerate(hostile)
    )
    deleted = read_changes(pipeline.root, str(T), "delete")
    assert sorted((entry["old_values"] for entry in deleted), key=str) == sorted(
        ([None, number, name] for name, number in gone), key=str
    )
    assert len({entry["relation_version"] for entry in read + deleted}) == 1


def test_more_keys_than_one_statement_takes(database18: Database, pipeline: Pipeline) -> None:
    database18.execute("create table t (id text primary key, v int)")
    database18.execute("insert into t select i::text, i from generate_series(1, 2500) i")
    reread_keys(load(pipeline), T, [(str(i),) for i in range(2600)], stop=threading.Event())
    assert fold(pipeline.root, str(T)) == read_source(database18, "t")
    assert len(read_changes(pipeline.root, str(T), "delete")) == 100


def test_keys_outside_what_is_published_are_gone(database18: Database, pipeline: Pipeline) -> None:
    database18.execute("create table t (id int primary key, v int)")
    database18.execute("insert into t values (1, 1), (2, 2)")
    database18.execute("drop publication walgate")
    database18.execute("create publication walgate for table t where (id < 2)")
    pipeline.make_slot_again()
    reread_keys(load(pipeline), T, [("1",), ("2",)], stop=threading.Event())
    assert [entry["op"] for entry in read_changes(pipeline.root, str(T))] == ["read", "delete"]


def test_a_key_that_the_lake_has_hashes_of_cannot_be_asked_for(
    database18: Database, pipeline: Pipeline
) -> None:
    database18.execute("create table t (id text primary key, v int)")
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + '[tables."public.t"]\nhash = ["id"]\n')
    with pytest.raises(ConfigurationError, match="hashes of id") as refused:
        reread_keys(load(pipeline), T, [("1",)], stop=threading.Event())
    assert "walgate backfill" in refused.value.fix
