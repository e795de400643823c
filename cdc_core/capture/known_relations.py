"""The newest relation of each table, in the order of the stream.

Pure. An announcement and a chunk each show the catalog of the moment when they were made. Capture
compares each with the one before it. So rows from before a rewrite and rows from after it never
share a relation version. The log alone cannot ensure that: it stores a relation only with the batch
that needs it, and capture may take several chunks before it stages a batch.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc_core.vocabulary import Relation


class KnownRelations:
    """The newest relation of each table in one term of capture, by oid."""

    def __init__(self, find_stored: Callable[[int], Relation | None]) -> None:
        """Start empty; `find_stored` returns the log's newest relation of a table."""
        self._find_stored = find_stored
        self._newest: dict[int, Relation] = {}

    def find(self, oid: int) -> Relation | None:
        """The newest relation of a table; None if neither this term nor the log has one."""
        return self._newest.get(oid) or self._find_stored(oid)

    def note(self, relation: Relation) -> None:
        """Keep the relation of an announcement, or of a chunk or sweep that enters the log."""
        self._newest[relation.oid] = relation

    def compare(self, relation: Relation) -> Relation:
        """Mark a worker's relation if the table was rewritten since its newest known relation.

        This does not keep the relation. Call `note` for that, once its rows enter the log.
        """
        return relation.after(self.find(relation.oid))
