"""Random streams as plain values: the frames that a server would send, and the entries they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import strategies as st

from cdc_core.protocol.messages import Announcement
from cdc_core.vocabulary import Column, Lsn, Relation, TransactionId
from tests.protocol import encoding

TABLES = {11: "a", 22: "b"}
TIME_US = 800_000_000_000_000
POSTGRES_EPOCH_US = 946_684_800_000_000
# Position, transaction, then what changed.
Entry: TypeAlias = tuple[int, int, int, int, str, str | None, tuple[str | None, ...]]


@dataclass(frozen=True)
class Step:
    """One message inside a transaction."""

    kind: str
    oid: int = 11
    value: str | None = None


@dataclass(frozen=True)
class Sent:
    """A transaction: where it is, and what is in it."""

    commit_lsn: int
    end_lsn: int
    xid: int
    steps: tuple[Step, ...] = field(default=())
    time_us: int = TIME_US

    @property
    def has_entries(self) -> bool:
        """Whether anything of it is staged."""
        return any(step.kind not in {"message", "announce"} for step in self.steps)

    @property
    def identity(self) -> TransactionId:
        """How staging knows it."""
        return TransactionId(Lsn(self.commit_lsn), self.xid, self.time_us + POSTGRES_EPOCH_US)

    def frames(self) -> list[bytes]:
        """Give all its frames; each table is announced before its first use, or not again."""
        return [
            encoding.begin(self.commit_lsn, self.time_us, self.xid),
            *map(encode_step, self.steps),
            encoding.commit(self.commit_lsn, self.end_lsn, self.time_us),
        ]

    def entries(self) -> list[Entry]:
        """Give what is to be staged of it, numbered."""
        found: list[Entry] = []
        seq = 0
        for step in self.steps:
            if step.kind == "announce":
                continue
            head = (self.commit_lsn, seq, self.end_lsn, self.xid)
            table = f"public.{TABLES[step.oid]}"
            match step.kind:
                case "message":
                    pass
                case "mark":
                    found.append((*head, "mark", None, ()))
                case "truncate":
                    found.append((*head, "truncate", table, ()))
                case "delete":
                    found.append((*head, "delete", table, ()))
                case _:
                    found.append((*head, step.kind, table, (str(step.oid), step.value)))
            seq += 1
        return found


def encode_step(step: Step) -> bytes:
    """Give the frame of one message."""
    row = [str(step.oid), step.value]
    encoded = {
        "announce": announcement(step.oid),
        "mark": encoding.logical_message(1, 5, b"walgate", b'{"mark": "m"}'),
        "message": encoding.logical_message(1, 5, b"walgate", b"no mark"),
        "truncate": encoding.truncate([step.oid], 0),
        "insert": encoding.insert(step.oid, row),
        "update": encoding.update(step.oid, row),
        "delete": encoding.delete(step.oid, [str(step.oid), None]),
    }
    return encoded[step.kind]


def announcement(oid: int) -> bytes:
    """Give the frame that announces a table."""
    columns = [(1, b"id", 20, -1), (0, b"note", 25, -1)]
    return encoding.relation(oid, b"public", TABLES[oid].encode(), b"d", columns)


def complete(found: Announcement, _xid: int) -> Relation:
    """Complete a relation without a catalog."""
    columns = tuple(
        Column(
            c.name,
            None,
            c.type_oid,
            c.type_modifier,
            "?",
            not_null=False,
            key_ordinal=None,
            in_identity=c.in_identity,
        )
        for c in found.columns
    )
    return Relation(found.oid, found.table, found.identity, columns)


def header_of_all() -> list[bytes]:
    """Give the announcements that a stream needs before its first row."""
    return [announcement(oid) for oid in TABLES]


_STEPS = st.builds(
    Step,
    st.sampled_from(["insert", "insert", "update", "delete", "truncate", "mark", "message"])
    | st.just("announce"),
    st.sampled_from(list(TABLES)),
    st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
)


@st.composite
def streams(draw: st.DrawFn) -> list[Sent]:
    """Draw transactions in commit order; some are empty."""
    at, sent = 1000, []
    for index in range(draw(st.integers(1, 6))):
        at += draw(st.integers(0, 3)) * 8
        steps = draw(st.lists(_STEPS, max_size=8))
        # The server announces a table once a session, before its first change.
        announced = [Step("announce", oid) for oid in TABLES] if index == 0 else []
        # Commit times step back.
        time_us = TIME_US + draw(st.integers(-3, 3))
        sent.append(Sent(at, at + 48, 100 + index, (*announced, *steps), time_us))
        at += 48
    return sent
