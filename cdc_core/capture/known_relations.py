"""The newest relation of each table, in the order of the stream.

Pure. An announcement and a chunk each show what the catalog said when they were made. Each is
compared with the one before it, so that rows from before a rewrite and rows from after it never
share a relation version. The log alone does not serve for that: it stores a relation only with the
batch that needs it, and a session may take several chunks before.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc_core.vocabulary import Relation


class KnownRelations:
    """What one session of capture knows of each table, by oid."""

    def __init__(self, find_stored: Callable[[int], Relation | None]) -> None:
        """Nothing was seen yet; `find_stored` gives the log's newest relation of a table."""
        self._find_stored = find_stored
        self._newest: dict[int, Relation] = {}

    def find(self, oid: int) -> Relation | None:
        """The newest relation of a table; None if neither the session nor the log has one."""
        return self._newest.get(oid) or self._find_stored(oid)

    def note(self, relation: Relation) -> None:
        """Note a relation that was announced, or of a chunk or sweep that the log takes."""
        self._newest[relation.oid] = relation

    def compare(self, relation: Relation) -> Relation:
        """The relation that a worker read, marked if its table was rewritten since the newest one.

        It is noted by `note`, and only if its rows are taken into the log.
        """
        return relation.after(self.find(relation.oid))
