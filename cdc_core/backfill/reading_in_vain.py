"""Why a backfill discards the chunks that it has read, and reads the table from its beginning."""

from __future__ import annotations

OTHER_KEY = "its key, or the order of its key, is another than before"
HIDDEN_KEY = "the lake hashes its key, so the log has no bounds of what was read"
# A chunk's `by`, if the lake hashes a column of the key: the chunk has no bounds either.
HIDDEN: tuple[str, ...] = ()


class AnotherKey(Exception):
    """The bounds of the ranges that the log has are invalid, or the log does not have them.

    They are invalid if the key, or the order of the key, is another than before. The order is that
    of the key's types and of its collations, each in its version. The message is the reason.
    """


class Rewritten(Exception):
    """The table was rewritten after a part of it was read, so the values read may have changed.

    `ALTER COLUMN … TYPE … USING` changes rows without a change in the stream. VACUUM FULL, CLUSTER
    and TRUNCATE alone do not raise this.
    """
