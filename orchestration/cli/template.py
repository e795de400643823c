"""The commented walgate.toml that `walgate init` writes: what must be set, and every default."""

from __future__ import annotations

import json
from pathlib import Path

from cdc_core.errors import ConfigurationError

_TEMPLATE = """\
# Walgate: one pipeline, from a PostgreSQL database to Delta tables. Lines with # show defaults.
# Relative paths are relative to this file. The environment overrides any key: WALGATE_SOURCE__DSN.

[source]
# Without a password: use WALGATE_SOURCE__PASSWORD, password_file, or libpq's PGPASSFILE.
# Another host needs sslmode=verify-full and sslrootcert=…, or allow_insecure = true.
dsn = {dsn}
slot = {slot}
publication = {publication}
# password_file = "password"
# origin = "any"               # "none" leaves out what another replication brought (16 or later)
# slot_budget = "10GB"         # WAL the slot may keep; default: the server's max_slot_wal_keep_size
# connect_timeout = "10s"
# silence_timeout = "30s"      # without an answer; then the connection is made again
# allow_insecure = false
# hash_key_file = "hash.key"   # or WALGATE_HASH_KEY; needed by hash below

[lake]
root = {root}
# spool = "lake/spool"         # private and temporary; default: spool below root
# retention = "7d"             # a cut that is older is dropped
# grace = "6h"                 # a file that no reader needs any more stays for this time

# [redis]                      # live figures and wake-ups; nothing in it is needed
# url = "redis://127.0.0.1:6379/0"
# prefix = "walgate"           # default: [dagster] pipeline

# [capture]
# batch_seconds = 1            # a batch waits no longer than this
# batch_rows = 100000
# batch_bytes = "64MB"
# spool_bytes = "128MB"        # a larger transaction goes through the spool
# heartbeat_seconds = 10       # an idle source still advances this often
# run_minutes = 30             # a run under Dagster ends after this; the next one goes on

# [spark]
# master = "local[2]"
# delta_jars = "packages"      # or a folder with the JARs, or "provided"
# driver_memory = "4g"
# conf = {{}}

# [backfill]
# chunk_rows = 200000          # most rows of a chunk; fewer if it takes over 2 s or 16 MB
# parallel = 2                 # connections that read at a time
# rows_per_second = 20000      # over all connections; default: no limit
# order = "smallest"           # of several tables, or "given"
# most_slot_percent = 75       # pause while the slot has used more of its budget
# most_lag = "1GB"             # pause while more WAL is not staged yet
# automatic = true             # Dagster reads tables that were never read whole, by itself

# [merge]
# round_rows = 2000000
# linger_seconds = 60          # a run under Dagster waits this long for more
# run_minutes = 30             # and ends after this at the latest

# [verify]
# every = "1h"                 # under Dagster
# rows_per_run = 10000000      # a larger table is compared in parts, in rotation
# ranges = 2048                # first ranges of a table; those that differ are narrowed

# [maintenance]
# every = "10min"              # under Dagster
# every_cut = "15min"          # every cut that is younger is kept
# ten_minute_cuts = "1d"       # one of every 10 min is kept until this age, then one an hour

# [dagster]
# pipeline = "walgate"         # another name for each pipeline that shares a Dagster or a Redis
# home = ".walgate/dagster"    # runs, ticks and events
# port = 3000                  # of its page, on loopback
# autostart = true             # sensors run from the start
# freshness = {{ "staging/changes" = "5min" }}

# [tables."public.orders"]     # or a pattern such as "public.*"; the most exact one counts
# exclude = ["ssn"]            # never in the log, and no column of the table
# hash = ["email"]             # HMAC-SHA256 of its text, in hexadecimal
# types = {{ amount = "decimal(38,4)" }}   # another type of a column in the lake
"""


def format_configuration(*, dsn: str, slot: str, publication: str, root: str) -> str:
    """The text of a configuration with the values that must be set."""
    values = {"dsn": dsn, "slot": slot, "publication": publication, "root": root}
    # A JSON string is a TOML string unless it escapes a slash, and `json.dumps` does not.
    quoted = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return _TEMPLATE.format(**quoted)


def write_configuration(file: Path, text: str) -> None:
    """Write the file, private to its owner; if it has the same text already, change nothing.

    Raises: ConfigurationError if the file exists with another text.
    """
    try:
        with file.open("x", encoding="utf-8") as opened:
            file.chmod(0o600)
            opened.write(text)
    except FileExistsError as error:
        if file.is_file() and file.read_bytes() == text.encode():
            return
        raise ConfigurationError(
            [f"{file} exists and is not overwritten"],
            fix="edit it, or name another file with --config",
        ) from error
