"""What the settings conceal is kept from the log on the way of a backfill too."""

from __future__ import annotations

import hashlib
import hmac
import threading
from pathlib import Path

import pyarrow.parquet as pq

from cdc_core.backfill.results import BackfillProgress
from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill.backfill import run_backfills
from tests.backfill.folded_log import read_changes
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

CANARY = "c4n4ry-{}-row"
KEY = "0123456789abcdef" * 4
T = TableName("public", "t")


def test_a_backfill_leaves_out_and_hashes_what_the_settings_conceal(
    database18: Database, pipeline: Pipeline
) -> None:
    database18.execute("create table t (id int primary key, secret text, mail text, v text)")
    secret, mail = CANARY.format("secret"), CANARY.format("mail")
    database18.execute(
        "insert into t values (1, %s, %s, 'a'), (2, %s, null, 'b')", [secret, mail, secret]
    )
    file = pipeline.folder / "walgate.toml"
    rules = '[tables."public.t"]\nexclude = ["secret"]\nhash = ["mail"]\n'
    file.write_text(file.read_text() + rules)
    settings = load_settings(file, {"WALGATE_HASH_KEY": KEY})
    run_backfills(settings, [T], chunk_rows=1, parallel=1, stop=threading.Event())
    hashed = hmac.new(KEY.encode(), mail.encode(), hashlib.sha256).hexdigest()
    rows = [entry["values"] for entry in read_changes(pipeline.root, "public.t", "read")]
    assert rows == [["1", hashed, "a"], ["2", None, "b"]]
    # A row that changes later has the same shape.
    database18.execute("update t set v = 'c' where id = 1")
    pipeline.catch_up(WALGATE_HASH_KEY=KEY)
    entries = read_changes(pipeline.root, "public.t")
    assert entries[-1]["values"] == ["1", hashed, "c"]
    assert len({entry["relation_version"] for entry in entries}) == 1
    for kept in pipeline.folder.rglob("*"):
        assert not holds_canary(kept), kept


def test_a_hashed_key_is_no_bound_of_a_chunk(database18: Database, pipeline: Pipeline) -> None:
    database18.execute("create table t (mail text primary key, v text)")
    mails = [CANARY.format(letter) for letter in "abcd"]
    for mail in mails:
        database18.execute("insert into t values (%s, 'a')", [mail])
    file = pipeline.folder / "walgate.toml"
    file.write_text(file.read_text() + '[tables."public.t"]\nhash = ["mail"]\n')
    settings = load_settings(file, {"WALGATE_HASH_KEY": KEY})
    stop = threading.Event()

    def stop_at_two(_: TableName, progress: BackfillProgress) -> None:
        if progress.chunks == 2:
            stop.set()

    stopped = run_backfills(
        settings, [T], chunk_rows=1, parallel=1, stop=stop, on_progress=stop_at_two
    )
    assert stopped == {}
    # It begins again, for the log does not say what the chunks before held.
    done = run_backfills(settings, [T], chunk_rows=1, parallel=1, stop=threading.Event())
    assert done[T].rows == 4
    hashed = [hmac.new(KEY.encode(), one.encode(), hashlib.sha256).hexdigest() for one in mails]
    rows = [entry["values"][0] for entry in read_changes(pipeline.root, "public.t", "read")]
    assert set(rows) == {*hashed}
    assert rows[-4:] == hashed
    for kept in pipeline.folder.rglob("*"):
        assert not holds_canary(kept), kept


def holds_canary(path: Path) -> bool:
    """Whether a file has the canary, in a Parquet file in any encoding of it."""
    if not path.is_file():
        return False
    if path.suffix == ".parquet":
        return "c4n4ry" in str(pq.read_table(path, partitioning=None).to_pylist())
    return b"c4n4ry" in path.read_bytes()
