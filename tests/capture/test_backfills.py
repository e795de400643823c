"""A chunk enters the log at its watermark, without the rows that were changed behind its back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from cdc_core.backfill.marks import (
    BackfillMark,
    BeginBackfill,
    EndBackfill,
    KeepChangedKeys,
    RequestSweep,
    Watermark,
    format_backfill_mark,
)
from cdc_core.backfill.visibility import Snapshot
from cdc_core.capture.backfills import Spooled
from cdc_core.capture.transactions import Collector
from cdc_core.layout import DECODED_SCHEMA
from cdc_core.protocol.messages import Announcement, parse_message
from cdc_core.spooled import Chunk, SweepRequest
from cdc_core.vocabulary import Lsn, Position, Relation, TransactionId
from tests.capture.stream import POSTGRES_EPOCH_US, TIME_US, announcement, complete
from tests.protocol import encoding

A, B = 11, 22
BACKFILL, MEMORY = "a" * 32, "b" * 32
SEES_99 = Snapshot.parse("100:100:")


def message(step: BackfillMark) -> bytes:
    return encoding.logical_message(1, 5, b"walgate", format_backfill_mark(step).encode())


def begin(memory: str = MEMORY, table: str = "public.a") -> bytes:
    return message(BeginBackfill(BACKFILL, memory, table))


def alive(memory: str = MEMORY) -> bytes:
    return message(KeepChangedKeys(BACKFILL, memory))


def watermark(
    snapshot: str,
    *,
    chunk: int = 0,
    oldest: str | None = None,
    memory: str = MEMORY,
    has_more: int = 0,
) -> bytes:
    seen, oldest_seen = Snapshot.parse(snapshot), Snapshot.parse(oldest or snapshot)
    return message(Watermark(BACKFILL, memory, chunk, 1, seen, oldest_seen, has_more))


class Session:
    """A capture session: transactions of given ids, one after the other."""

    def __init__(
        self, *, staged: int = 0, expected: list[tuple[int, int]] | None = None, size: int = 3
    ) -> None:
        self.at = 1000
        self.noted: list[Relation] = []
        announced = parse_message(announcement(A))
        assert isinstance(announced, Announcement)
        values = [[str(n), f"read {n}"] for n in range(size)]
        self.chunk = Chunk(
            complete(announced, 0),
            pa.chunked_array([values[:1], values[1:]], DECODED_SCHEMA.field("values").type),
            None,
            ("9",),
        )
        self.sweeping = SweepRequest(self.chunk.relation, Position(1, Lsn(1000), 0))
        self.collector = Collector(
            staged=Lsn(staged),
            expected=[
                TransactionId(Lsn(lsn), xid, TIME_US + POSTGRES_EPOCH_US)
                for lsn, xid in expected or ()
            ],
            complete=complete,
            log_time_us=0,
            spooled=Spooled(
                lambda step: self.chunk if step.chunk == 0 else None,
                lambda _: self.sweeping,
                lambda backfill: backfill == BACKFILL,
                self.noted.append,
            ),
        )
        self.commit(1, announcement(A), announcement(B))

    def commit(self, xid: int, *frames: bytes, minute: int = 0) -> None:
        at_us = TIME_US + minute * 60_000_000
        sent = [
            encoding.begin(self.at, at_us, xid),
            *frames,
            encoding.commit(self.at, self.at + 8, at_us),
        ]
        assert self.collector.feed(sent) == len(sent)
        self.at += 8

    def take(self) -> list[dict[str, Any]]:
        batch = self.collector.take()
        assert batch is not None
        order = [("commit_lsn", "ascending"), ("seq", "ascending")]
        rows: list[dict[str, Any]] = batch.to_table(1).sort_by(order).to_pylist()
        self.relations = [relation for relation, _ in batch.relations]
        return rows

    def read_keys(self) -> list[str]:
        return [row["values"][0] for row in self.take() if row["op"] == "read"]


@pytest.mark.parametrize("has_more", [0, 1])
def test_capture_stages_the_last_chunk_of_a_backfill_at_once(has_more: int) -> None:
    session = Session()
    session.commit(50, begin())
    session.take()
    session.commit(51, watermark("100:100:", has_more=has_more))
    assert (session.collector.patience == 0) == (not has_more)


def test_a_chunk_follows_its_watermark_and_the_numbers_go_on() -> None:
    session = Session()
    session.commit(50, begin())
    at = session.at
    session.commit(51, watermark("100:100:"), encoding.insert(B, ["7", "x"]))
    rows = [row for row in session.take() if row["commit_lsn"] == at]
    assert [(row["seq"], row["op"], row["table"]) for row in rows] == [
        (0, "mark", None),
        (1, "read", "public.a"),
        (2, "read", "public.a"),
        (3, "read", "public.a"),
        (4, "insert", "public.b"),
    ]
    assert [row["values"] for row in rows[1:4]] == [[str(n), f"read {n}"] for n in range(3)]
    assert {row["relation_version"] for row in rows[1:4]} == {session.chunk.relation.version}
    said = json.loads(rows[0]["detail"])
    assert (said["state"], said["rows"], said["stale"], said["high"]) == ("staged", 3, 0, ["9"])
    assert session.chunk.relation in session.relations


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (encoding.insert(A, ["1", "new"]), ["0", "2"]),
        (encoding.update(A, ["1", "new"]), ["0", "2"]),
        (encoding.delete(A, ["1", None]), ["0", "2"]),
        (encoding.update(A, ["2", "moved"], old=["1", None]), ["0"]),
        (encoding.truncate([A], 0), []),
        (encoding.truncate([B], 0), ["0", "1", "2"]),
        (encoding.insert(B, ["1", "new"]), ["0", "1", "2"]),
    ],
)
def test_what_the_chunk_does_not_see_wins_over_it(change: bytes, left: list[str]) -> None:
    for snapshot, expected in (
        ("100:100:", left),
        ("100:102:101", left),
        ("102:102:", ["0", "1", "2"]),
    ):
        session = Session()
        session.commit(50, begin())
        session.commit(101, change)
        session.commit(60, watermark(snapshot))
        assert session.read_keys() == expected


@pytest.mark.parametrize(
    ("change", "snapshot", "expected"),
    [
        (None, "100:100:", "read 0, read 2, delete 5, delete 6"),
        (encoding.insert(A, ["5", "new"]), "100:100:", "read 0, read 2, delete 6"),
        (encoding.delete(A, ["2", None]), "100:100:", "read 0, delete 5, delete 6"),
        (encoding.delete(A, ["5", None]), "102:102:", "read 0, read 2, delete 5, delete 6"),
        (encoding.truncate([A], 0), "100:100:", ""),
    ],
)
def test_a_key_that_was_asked_for_and_has_no_row_is_deleted_unless_it_changed_since(
    change: bytes | None, snapshot: str, expected: str
) -> None:
    session = Session()
    rows = session.chunk.values.take([0, 2])
    asked = (("0",), ("5",), ("2",), ("6",))
    session.chunk = replace(session.chunk, values=rows, high=None, asked=asked)
    session.commit(50, begin())
    if change is not None:
        session.commit(101, change)
    at = session.at
    session.commit(60, watermark(snapshot))
    mark, *brought = (row for row in session.take() if row["commit_lsn"] == at)
    told = [f"{row['op']} {(row['values'] or row['old_values'])[0]}" for row in brought]
    assert ", ".join(told) == expected
    said = json.loads(mark["detail"])
    assert said["rows"] == expected.count("read")
    assert said["stale"] == 2 - said["rows"]


def test_what_another_open_chunk_does_not_see_is_not_forgotten() -> None:
    for oldest, expected in (("100:100:", ["0", "2"]), ("102:102:", ["0", "1", "2"])):
        session = Session()
        session.commit(50, begin())
        session.commit(101, encoding.insert(A, ["1", "new"]))
        session.commit(60, watermark("102:102:", oldest=oldest))
        session.take()
        session.commit(61, watermark("100:100:"))
        assert session.read_keys() == expected


def test_a_chunk_of_which_too_little_is_remembered_is_void() -> None:
    def void(*transactions: bytes) -> bool:
        session = Session()
        for frame in transactions:
            session.commit(50, frame)
        rows = session.take()
        return not any(row["op"] == "read" for row in rows) and any(
            json.loads(row["detail"] or "{}").get("state") == "void" for row in rows
        )

    assert void(watermark("100:100:"))
    assert void(begin("c" * 32), watermark("100:100:"))
    assert void(begin(table="public.b"), watermark("100:100:"))
    assert void(begin(), message(EndBackfill(BACKFILL, MEMORY)), watermark("100:100:"))
    assert void(begin(), watermark("100:100:", chunk=1))
    assert not void(begin(), watermark("100:100:"))


@pytest.mark.parametrize(("changed", "state"), [(A, "void"), (B, "staged")])
def test_the_largest_memory_is_given_up_where_all_are_too_large(
    monkeypatch: pytest.MonkeyPatch, changed: int, state: str
) -> None:
    monkeypatch.setattr("cdc_core.backfill.changed_key_tracker.MEMORY_BYTES", 1000)
    session = Session()
    session.commit(50, begin(), begin("c" * 32, "public.b"))
    session.commit(51, encoding.insert(A, ["7", "x"]), encoding.insert(B, ["7", "x"]))
    session.commit(100, *(encoding.insert(changed, [str(n), "x"]) for n in range(100)))
    session.take()
    session.commit(52, watermark("100:100:"))
    assert json.loads(session.take()[0]["detail"])["state"] == state


def test_what_was_begun_before_a_restart_is_remembered_no_more() -> None:
    session = Session(staged=1016, expected=[(1008, 50)])
    session.commit(50, begin())
    session.commit(51, watermark("100:100:"))
    rows = session.take()
    assert [(row["op"], json.loads(row["detail"])["state"]) for row in rows] == [("mark", "void")]


def read_states(rows: list[dict[str, Any]]) -> list[str]:
    details = (json.loads(row["detail"] or "{}") for row in rows)
    return [f"{said['step']} {said['state']}" for said in details if "state" in said]


def test_a_sign_of_life_keeps_a_memory_and_never_makes_one() -> None:
    """A capture that begins again knows no memory; the worker that reads on does not make one."""
    begun_before = Session(staged=1016, expected=[(1008, 50)])
    begun_before.commit(50, begin())
    begun_before.commit(101, encoding.insert(A, ["1", "new"]))
    begun_before.commit(51, alive())
    begun_before.commit(60, watermark("100:100:"))
    rows = begun_before.take()
    assert read_states(rows) == ["alive void", "watermark void"]
    assert not [row for row in rows if row["op"] == "read"]


def test_a_begin_that_is_sent_again_before_it_was_staged_remembers_from_its_place() -> None:
    session = Session(staged=1008, expected=[])
    session.commit(50, begin())
    session.commit(101, encoding.insert(A, ["1", "new"]))
    session.commit(51, alive())
    session.commit(60, watermark("100:100:"))
    rows = session.take()
    assert read_states(rows) == ["begin kept", "alive kept", "watermark staged"]
    assert [row["values"][0] for row in rows if row["op"] == "read"] == ["0", "2"]


@pytest.mark.parametrize(
    ("heard", "states"),
    [
        ((), ["begin kept", "alive void", "watermark void"]),
        ((6, 12), ["begin kept", *["alive kept"] * 3, "watermark staged"]),
    ],
    ids=["silent", "heard_of"],
)
def test_a_memory_that_expired_does_not_come_back(
    heard: tuple[int, ...], states: list[str]
) -> None:
    """Its worker was paused, or the clock of the server was set forward."""
    session = Session()
    session.commit(50, begin())
    for minute in heard:
        session.commit(50, alive(), minute=minute)
    session.commit(101, encoding.insert(A, ["1", "new"]), minute=15)
    session.commit(51, alive(), minute=15)
    session.commit(60, watermark("100:100:"), minute=15)
    rows = session.take()
    assert read_states(rows) == states
    assert [row["values"][0] for row in rows if row["op"] == "read"] == (
        ["0", "2"] if heard else []
    )


def test_a_clock_that_was_set_back_does_not_keep_a_silent_memory() -> None:
    session = Session()
    session.commit(50, begin(), minute=600)
    session.commit(101, encoding.insert(A, ["1", "new"]), minute=0)
    session.take()
    session.commit(102, encoding.insert(B, ["1", "new"]), minute=11)
    session.take()
    session.commit(60, watermark("100:100:"), minute=11)
    assert read_states(session.take()) == ["watermark void"]


def test_no_step_brings_a_memory_back_that_ended_or_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Session()
    ended.commit(50, begin())
    ended.commit(101, encoding.insert(A, ["1", "new"]))
    ended.commit(51, message(EndBackfill(BACKFILL, MEMORY)), alive(), watermark("100:100:"))
    assert read_states(ended.take())[1:] == ["alive void", "watermark void"]
    monkeypatch.setattr("cdc_core.backfill.changed_key_tracker.MEMORY_BYTES", 1)
    given_up = Session()
    given_up.commit(50, begin())
    given_up.commit(101, encoding.insert(A, ["1", "new"]))
    given_up.commit(51, begin(), alive(), watermark("100:100:"))
    states = ["begin kept", "begin void", "alive void", "watermark void"]
    assert read_states(given_up.take()) == states


def test_a_memory_that_exists_is_not_begun_again() -> None:
    """Two workers never share an id: whatever sends it again changes nothing."""
    session = Session()
    session.commit(50, begin())
    session.commit(101, encoding.insert(A, ["1", "new"]))
    session.commit(51, begin(table="public.b"))
    session.commit(60, watermark("100:100:"))
    rows = session.take()
    assert read_states(rows) == ["begin kept", "begin void", "watermark staged"]
    assert [row["values"][0] for row in rows if row["op"] == "read"] == ["0", "2"]


def test_a_worker_learns_that_there_are_too_many_memories() -> None:
    session = Session()
    for number in range(257):
        session.commit(50, begin(f"{number:032x}"))
    assert read_states(session.take())[-2:] == ["begin kept", "begin void"]
    session.commit(50, begin(), minute=11)
    assert read_states(session.take()) == ["begin kept"], "the silent ones were not forgotten"


def test_a_sweep_is_an_entry_of_its_table() -> None:
    session = Session()
    session.commit(50, message(RequestSweep(BACKFILL)))
    entry = session.take()[-1]
    assert (entry["op"], entry["table"]) == ("sweep", "public.a")
    assert json.loads(entry["detail"])["start"] == [1, 1000, 0]


def test_the_relation_of_a_chunk_is_known_only_if_the_chunk_is_taken() -> None:
    session = Session()
    session.commit(51, watermark("100:100:"))
    assert session.noted == []
    session.commit(52, begin())
    session.commit(53, watermark("100:100:"))
    assert session.noted == [session.chunk.relation]
