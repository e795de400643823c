"""Broken configurations, given to the real command: every mistake at once, with line and fix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.walgate_command import run_walgate

CANARY = "c4n4ry-s3cret"
SOURCE = '[source]\ndsn = "host=/nowhere dbname=shop"\n'
LAKE = '[lake]\nroot = "lake"\n'

# Each: the file, the environment, and for every mistake the words that its line must hold.
BROKEN: dict[str, tuple[str, dict[str, str], list[list[str]]]] = {
    "not_toml": ("[source\n", {}, [["not TOML", "line 1"]]),
    "nothing_set": (
        "",
        {},
        [["source.dsn", "missing"], ["lake.root", "missing"]],
    ),
    "unknown_keys_and_sections": (
        SOURCE + "slott = 'a'\n" + LAKE + "[captur]\nbatch_rows = 1\n[lake.root2]\n",
        {},
        [
            ["walgate.toml:3", "source.slott", "did you mean slot"],
            ["walgate.toml:6", "captur", "did you mean capture"],
            ["walgate.toml:8", "lake.root2", "unknown key", "root"],
        ],
    ),
    "wrong_types": (
        "[source]\ndsn = 5\npublication = 7\nallow_insecure = 'perhaps'\n" + LAKE
        + "[capture]\nbatch_rows = true\nrun_minutes = []\n[spark]\nconf = 'x'\n",
        {},
        [
            ["walgate.toml:2", "source.dsn", "expected a string", "found an int"],
            ["walgate.toml:3", "source.publication", "a list of names"],
            ["walgate.toml:4", "source.allow_insecure", "expected true or false"],
            ["walgate.toml:8", "capture.batch_rows", "whole number", "found true"],
            ["walgate.toml:9", "capture.run_minutes", "expected a number"],
            ["walgate.toml:11", "spark.conf", "expected a table"],
        ],
    ),
    "bad_patterns": (
        SOURCE + "slot = 'My-Slot'\npublication = ['a', 'a']\norigin = 'here'\n" + LAKE
        + "[spark]\ndriver_memory = '4 gigs'\n[redis]\nurl = 'http://h'\n",
        {},
        [
            ["walgate.toml:3", "source.slot", "[a-z0-9_]{1,63}", "'My-Slot'"],
            ["walgate.toml:4", "source.publication", "each name once"],
            ["walgate.toml:5", "source.origin", "'any' or 'none'", "'here'"],
            ["walgate.toml:9", "spark.driver_memory", "'4 gigs'"],
            ["walgate.toml:11", "redis.url", "redis://"],
        ],
    ),
    "bad_quantities": (
        SOURCE + "slot_budget = '0'\nconnect_timeout = '10 parsecs'\n" + LAKE
        + "retention = '20min'\ngrace = '5s'\n"
        + "[capture]\nbatch_bytes = '4XB'\nheartbeat_seconds = 0\n"
        + "batch_rows = 0\n[merge]\nlinger_seconds = -1\n",
        {},
        [
            ["walgate.toml:3", "source.slot_budget", "above zero"],
            ["walgate.toml:4", "source.connect_timeout", "ms, s, min, h or d"],
            ["walgate.toml:7", "lake.retention", "run_minutes, which is 1800 s"],
            ["walgate.toml:8", "lake.grace", "at least 60 s"],
            ["walgate.toml:10", "capture.batch_bytes", "B, kB, MB, GB or TB"],
            ["walgate.toml:11", "capture.heartbeat_seconds", "above zero"],
            ["walgate.toml:12", "capture.batch_rows", "above zero"],
            ["walgate.toml:14", "merge.linger_seconds", "not negative"],
        ],
    ),
    "tables": (
        SOURCE + LAKE + "[tables.orders]\n[tables.'public.*']\nexcluded = ['a']\n"
        + "exclude = ['a', 'a']\n[tables.\"public.t\"]\nexclude = ['a']\nhash = ['a', 'b']\n",
        {},
        [
            ["walgate.toml:5", "tables.orders", "not a table or pattern"],
            ["tables.public.*.excluded", "did you mean exclude"],
            ["tables.public.*.exclude", "each name once"],
            ["walgate.toml:9", "tables.public.t", "found a in two places"],
            ["walgate.toml:11", "tables.public.t.hash", "needs a key", "WALGATE_HASH_KEY"],
        ],
    ),
    "types_of_columns": (
        SOURCE + LAKE + "[tables.\"public.t\"]\nexclude = ['x']\n"
        + "types = { a = 'money', b = 'decimal(39,2)', c = 5, d = 'bigint' }\n"
        + "[tables.\"public.u\"]\nexclude = ['x']\ntypes = { x = 'string' }\n"
        + "[tables.\"public.v\"]\ntypes = 'string'\n",
        {},
        [
            ["walgate.toml:7", "tables.public.t.types.a", "expected string,", "found 'money'"],
            ["walgate.toml:7", "public.t.types.b", "1 to 38 digits", "found 'decimal(39,2)'"],
            ["walgate.toml:7", "tables.public.t.types.c", "in quotes"],
            ["walgate.toml:8", "tables.public.u", "found x in two places"],
            ["walgate.toml:12", "tables.public.v.types", "a type for each column"],
        ],
    ),
    "a_hash_key_that_is_guessed": (
        f"hash_key = '{CANARY}'\n" + SOURCE + LAKE + "[tables.\"public.t\"]\nhash = ['a']\n",
        {"WALGATE_HASH_KEY": CANARY},
        [["source.hash_key_file", "shorter than 32"], ["hash_key", "unknown section"]],
    ),
    "password_in_a_pair": (
        f"[source]\ndsn = \"host=/nowhere password='{CANARY}'\"\npassword = '{CANARY}'\n" + LAKE,
        {},
        [
            ["walgate.toml:2", "source.dsn", "password inside", "WALGATE_SOURCE__PASSWORD"],
            ["walgate.toml:3", "source.password", "password in the file"],
        ],
    ),
    "password_in_a_uri": (
        f'[source]\ndsn = "postgresql://u:{CANARY}@127.0.0.1/x?sslpassword={CANARY}"\n' + LAKE,
        {},
        [["source.dsn", "a password inside"], ["source.dsn", "a sslpassword inside"]],
    ),
    "unverified_transport": (
        '[source]\ndsn = "postgresql://u@db.example.com,127.0.0.1/x?sslmode=require"\n' + LAKE,
        {},
        [["walgate.toml:2", "sslmode=verify-full", "db.example.com", "found require"]],
    ),
    "malformed_dsn": (
        f"[source]\ndsn = \"host=x password '{CANARY}\"\n" + LAKE,
        {},
        [["walgate.toml:2", "source.dsn", "not a connection string", "key=value"]],
    ),
    "a_dsn_and_a_redis_that_are_wrong_in_every_way": (
        '[source]\ndsn = "hots=127.0.0.1 port=abc sslmode=full connect_timeout=soon"\nslott = 1\n'
        + LAKE + f"[redis]\nurl = 'redis://:{CANARY}@h:port/0'\n",
        {},
        [
            ["walgate.toml:2", "source.dsn", "unknown option hots, did you mean host?"],
            ["walgate.toml:2", "source.dsn", "port as a number from 1 to 65535"],
            ["walgate.toml:2", "source.dsn", "sslmode as one of", "verify-full"],
            ["walgate.toml:2", "source.dsn", "connect_timeout as a whole number"],
            ["walgate.toml:3", "source.slott", "did you mean slot"],
            ["walgate.toml:7", "redis.url", "a port from 1 to 65535"],
            ["walgate.toml:7", "redis.url: a password in the file", "set WALGATE_REDIS__URL"],
        ],
    ),
    "a_uri_with_mistakes": (
        '[source]\ndsn = "postgresql://u@127.0.0.1:0,127.0.0.2:99999/x?conect_timeout=3"\n' + LAKE
        + "[redis]\nurl = 'redis://h/one'\n",
        {},
        [
            ["walgate.toml:2", "source.dsn", "conect_timeout, did you mean connect_timeout?"],
            ["walgate.toml:2", "source.dsn", "port as a number"],
            ["walgate.toml:6", "redis.url", "number of a database"],
        ],
    ),
    "a_password_that_is_not_quoted": (
        f'[source]\ndsn = "host=/nowhere password=two {CANARY}"\n' + LAKE,
        {},
        [["walgate.toml:2", "source.dsn", "not a connection string"]],
    ),
    "a_password_that_looks_like_an_option": (
        f'[source]\ndsn = "host=/nowhere password=two {CANARY}=x"\n' + LAKE,
        {},
        [
            ["walgate.toml:2", "source.dsn", "has an option that libpq does not know"],
            ["walgate.toml:2", "source.dsn", "a password inside the DSN"],
        ],
    ),
    "a_password_with_a_slash_that_is_not_encoded": (
        SOURCE + LAKE + f"[redis]\nurl = 'redis://:p/{CANARY}@h/0'\n",
        {},
        [["walgate.toml:6", "redis.url", "percent-encoded"]],
    ),
    "an_empty_dsn": (
        "[source]\ndsn = '  '\n" + LAKE,
        {},
        [["walgate.toml:2", "source.dsn", "the connection string is empty"]],
    ),
    "places_that_cannot_be": (
        SOURCE + "password_file = 'gone'\n[lake]\nroot = 'gs://bucket/lake'\nspool = '.'\n"
        "[spark]\ndelta_jars = 'gone'\n",
        {},
        [
            ["walgate.toml:3", "source.password_file", "No such file"],
            ["walgate.toml:5", "lake.root", "expected a folder, or s3://"],
            ["walgate.toml:6", "lake.spool", "empties the spool"],
            ["walgate.toml:8", "spark.delta_jars", "does not exist"],
        ],
    ),
    **{
        f"a_lake_that_delta_cannot_open_{number}": (
            SOURCE + f"[lake]\nroot = 'old/the{part}lake'\n",
            {},
            [["walgate.toml:4", "lake.root", repr(part), "Delta"]],
        )
        for number, part in enumerate(["[", "]", "|", "^", "\\", "%4f", "\t"])
    },
    "a_store_without_a_region": (
        SOURCE + "[lake]\nroot = 's3://bucket/lake'\n",
        {},
        [["walgate.toml:4", "lake.root", "aws_region"]],
    ),
    "a_region_of_the_environment_and_a_plain_endpoint": (
        SOURCE + "[lake]\nroot = 's3://bucket/lake'\n",
        {"AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        [["walgate.toml:4", "lake.root", "aws_allow_http = true"]],
    ),
    "credentials_among_the_options_of_a_store": (
        SOURCE + "[lake]\nroot = 's3://bucket/lake'\n"
        f"storage_options = {{ aws_secret_access_key = '{CANARY}' }}\n",
        {},
        [["walgate.toml:5", "lake.storage_options", "no credentials", "AWS_PROFILE"]],
    ),
    "secrets_of_spark_in_the_file": (
        SOURCE + LAKE + f"[spark.conf]\n'spark.authenticate.secret' = '{CANARY}'\n"
        f"spark.ssl.keyPassword = '{CANARY}'\n",
        {"WALGATE_SPARK__CONF": '{"spark.authenticate.secret": "one of the environment"}'},
        [
            ["walgate.toml:6", "spark.authenticate.secret: a secret in the file", "_SPARK__CONF"],
            ["walgate.toml:7", "spark.ssl.keyPassword: a secret in the file", "_SPARK__CONF"],
        ],
    ),
    "an_option_of_a_store_that_does_not_exist": (
        SOURCE + "[lake]\nroot = 's3://bucket/lake'\nstorage_options = { regoin = 'x' }\n",
        {},
        [["walgate.toml:5", "lake.storage_options", "aws_region", "found regoin"]],
    ),
    "options_of_a_store_for_a_folder": (
        SOURCE + LAKE + "storage_options = { aws_region = 'x' }\n",
        {},
        [["walgate.toml:4", "lake.root", "because there are storage_options"]],
    ),
    **{
        f"a_root_that_a_store_cannot_have_{number}": (
            SOURCE + f"[lake]\nroot = 's3://{root}'\n",
            {"AWS_REGION": "eu-west-1"},
            [["walgate.toml:4", "lake.root", "expected name" if "/" in root else "bucket"]],
        )
        for number, root in enumerate([
            "", "Bucket", "b", "bucket/", "bucket/a//b", "bucket/a#b", "bucket/a?b", "bucket/a%20b",
            "bucket/..", "bucket/a b",
        ])
    },
    "broken_environment": (
        SOURCE + "password_file = 'walgate.toml'\n" + LAKE,
        {
            "WALGATE_SOURCE__PASSWORD": CANARY,
            "WALGATE_CAPTURE__BATCH_BYTES": "many",
            "WALGATE_SOURCE__PUBLICATION": "[",
            "WALGATE_SORUCE__DSN": "x",
        },
        [
            ["environment WALGATE_SORUCE__DSN", "did you mean source"],
            ["source.password_file", "both"],
            ["environment WALGATE_CAPTURE__BATCH_BYTES", "found 'many'"],
            ["environment WALGATE_SOURCE__PUBLICATION", "not JSON"],
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_every_mistake_is_named_at_once_with_its_fix(name: str, tmp_path: Path) -> None:
    text, environment, mistakes = BROKEN[name]
    (tmp_path / "walgate.toml").write_text(text)
    answer = run_walgate("check", folder=tmp_path, environment=environment)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert len(answer.complaints) == len(mistakes) == len(answer.stderr.splitlines())
    for words in mistakes:
        assert any(all(w in line for w in words) for line in answer.complaints), (words, answer)
    assert all("fix: " in line for line in answer.complaints)
    assert CANARY not in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "walgate init"),
        (["check", "--config", "gone.toml"], "gone.toml does not exist"),
        (["check", "--frob"], "No such option: --frob"),
        (["frob"], "frob"),
        (["init", "--dsn", "host=db.example.com"], "sslmode=verify-full"),
        (["init", "--dsn", "host=/x", "--tables", "a.b.c"], "schema.name"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    answer = run_walgate(*arguments, folder=tmp_path)
    assert answer.exit_code == 2
    (line,) = answer.stderr.splitlines()
    assert words in line
    assert "fix: " in line
    assert list(tmp_path.iterdir()) == []


def test_init_writes_a_file_that_can_be_read_and_is_not_overwritten(tmp_path: Path) -> None:
    answer = run_walgate("init", "--dsn", "host=/nowhere dbname='my shop'", folder=tmp_path)
    assert answer.exit_code == 0
    file = tmp_path / "walgate.toml"
    assert file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert run_walgate("init", "--dsn", "host=/other", folder=tmp_path).exit_code == 2
    assert file.read_text() == text


def test_every_default_that_init_shows_may_be_set(tmp_path: Path) -> None:
    assert run_walgate("init", "--dsn", "host=/nowhere", folder=tmp_path).exit_code == 0
    file = tmp_path / "walgate.toml"
    shown = [line.removeprefix("# ") for line in file.read_text().splitlines()]
    written = [line for line in shown if re.match(r"\[|[a-z_]+ = ", line)]
    assert len(written) > 20
    # Those without a default name files that would have to exist.
    kept = [line for line in written if not line.startswith(("password_file", "hash_key_file"))]
    file.write_text("\n".join(kept))
    key = {"WALGATE_HASH_KEY": "f" * 64}
    assert run_walgate("check", folder=tmp_path, environment=key).exit_code == 3


def test_an_unreachable_source_is_a_failure_that_a_retry_may_cure(tmp_path: Path) -> None:
    (tmp_path / "walgate.toml").write_text(SOURCE + LAKE)
    answer = run_walgate("check", folder=tmp_path)
    assert answer.exit_code == 3
    (line,) = answer.stderr.splitlines()
    assert "cannot connect to the source" in line
    assert "fix: " in line


def test_only_debug_shows_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "walgate.toml").write_text(SOURCE + LAKE)
    assert "connection.py" not in run_walgate("check", folder=tmp_path).stderr
    assert "connection.py" in run_walgate("check", "--debug", folder=tmp_path).stderr
