"""What the settings conceal is kept from the log on the way of a backfill too."""

from __future__ import annotations

import hashlib
import hmac
import threading
from pathlib import Path

from cdc_core.settings import load_settings
from cdc_core.vocabulary import TableName
from orchestration.backfill import run_backfills
from tests.backfill.folded_log import read_changes
from tests.fix_pipeline import Pipeline
from tests.postgres_server import Database

CANARY = "c4n4ry-{}-row"
KEY = "0123456789abcdef" * 4


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
    run_backfills(
        settings, [TableName("public", "t")], chunk_rows=1, parallel=1, stop=threading.Event()
    )
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


def holds_canary(path: Path) -> bool:
    return path.is_file() and b"c4n4ry" in path.read_bytes()
