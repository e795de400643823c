"""The reasons why a backfill discards its chunks and reads the table from its beginning."""

from __future__ import annotations

OTHER_KEY = "the key of the table, or the order of the key, has changed"
HIDDEN_KEY = (
    "the lake hashes the key of the table, so the log does not have the bounds of its chunks"
)
# The `by` of a chunk if a key column is hashed. Such a chunk has no bounds either.
HIDDEN: tuple[str, ...] = ()


class KeyChanged(Exception):
    """The log's bounds of the ranges are invalid, or the log does not have them.

    They are invalid if the key, or the order of the key, has changed. The key's types and its
    collations, each with its version, define the order. The message is the reason.
    """


class Rewritten(Exception):
    """The table was rewritten or renamed after a part of it was read, so the part may be outdated.

    `ALTER COLUMN … TYPE … USING` changes rows without a change in the stream. VACUUM FULL, CLUSTER
    and TRUNCATE alone do not raise this.
    """
