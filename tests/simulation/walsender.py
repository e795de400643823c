"""The stream of a slot: the WAL's transactions in commit order, as pgoutput writes them."""

from __future__ import annotations

from tests.protocol import encoding
from tests.simulation.server import Change, Committed, Row, Server

_TEXT_OID, _INT_OID = 25, 23
COLUMNS = (("id", _INT_OID), ("v", _TEXT_OID), ("big", _TEXT_OID))
_KEY_FLAG = 1


class Walsender:
    """One session of the stream after the confirmed LSN. Each session announces tables again."""

    def __init__(self, server: Server, confirmed: int) -> None:
        """Nothing is sent yet."""
        self._server = server
        self._announced: set[str] = set()
        self._at = next(
            (n for n, one in enumerate(server.wal) if one.end_lsn > confirmed), len(server.wal)
        )

    @property
    def has_more(self) -> bool:
        """Whether a transaction can be sent."""
        return self._at < len(self._server.wal)

    def read(self) -> tuple[Committed, list[bytes]]:
        """The next transaction and its frames; no frames if nothing of it is published."""
        committed = self._server.wal[self._at]
        self._at += 1
        frames: list[bytes] = []
        for change in committed.changes:
            if change.kind == "alter":
                self._announced.discard(change.table)
            elif change.kind == "message":
                content = change.message.encode()
                message = encoding.logical_message(1, committed.commit_lsn, b"walgate", content)
                frames.append(message)
            else:
                frames += self._announce(change.table)
                frames.append(self._encode(change))
        if frames:
            begin = encoding.begin(committed.commit_lsn, committed.at_us, committed.xid)
            commit = encoding.commit(committed.commit_lsn, committed.end_lsn, committed.at_us)
            frames = [begin, *frames, commit]
        return committed, frames

    def _announce(self, table: str) -> list[bytes]:
        if table in self._announced:
            return []
        self._announced.add(table)
        columns = [
            (_KEY_FLAG if n == 0 else 0, name.encode(), oid, -1)
            for n, (name, oid) in enumerate(COLUMNS)
        ]
        oid = self._server.catalogs[table].oid
        return [encoding.relation(oid, b"public", table.encode(), b"d", columns)]

    def _encode(self, change: Change) -> bytes:
        oid = self._server.catalogs[change.table].oid
        match change:
            case Change(kind="insert", new=new) if new is not None:
                return encoding.insert(oid, new)
            case Change(kind="update", new=new, old=old) if new is not None and old is not None:
                sent = [
                    encoding.UNCHANGED if n in change.unsent else value
                    for n, value in enumerate(new)
                ]
                is_moved = old[0] != new[0]
                return encoding.update(oid, sent, _key_of(old) if is_moved else None, b"K")
            case Change(kind="delete", old=old) if old is not None:
                return encoding.delete(oid, _key_of(old))
            case Change(kind="truncate"):
                return encoding.truncate([oid], 0)
        raise AssertionError(change.kind)


def _key_of(row: Row) -> list[encoding.Value]:
    return [row[0], *[None] * (len(row) - 1)]
