"""Whatever a role of the database writes under our prefix: capture goes on and believes none."""

from __future__ import annotations

import json
import random

import pytest

from cdc_core.backfill.marks import BeginBackfill
from cdc_core.capture.batches import ENTRY_BYTES
from cdc_core.capture.transactions import Collector
from cdc_core.vocabulary import Lsn
from tests.capture.hostile_messages import WORST, draw_hostile
from tests.capture.stream import TIME_US, announcement, complete
from tests.capture.test_backfills import Session, begin, message, watermark
from tests.protocol import encoding

A = 11


def sent_by_others(content: bytes) -> bytes:
    return encoding.logical_message(1, 5, b"walgate", content)


@pytest.mark.parametrize("content", WORST, ids=range(len(WORST)))
def test_a_message_that_is_none_of_ours_is_skipped_and_counted(content: bytes) -> None:
    session = Session()
    session.commit(
        50,
        sent_by_others(content),
        encoding.insert(A, ["1", "x"]),
        sent_by_others(content),
        sent_by_others(b'{"mark": "ours"}'),
    )
    rows = session.take()
    assert [(row["seq"], row["op"]) for row in rows] == [(1, "insert"), (3, "mark")]
    assert json.loads(rows[1]["detail"]) == {"mark": "ours"}
    assert session.collector.skipped_messages == 2
    assert session.collector.has_mark("ours") is False


def test_hostile_messages_end_nothing_and_bring_no_text_of_theirs(seed: int) -> None:
    _send_hostile(seed, count=3_000)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_hostile_messages_end_nothing(seed: int) -> None:
    _send_hostile(seed, count=100_000)


def _send_hostile(seed: int, *, count: int) -> None:
    """Send hostile messages between rows and take what comes of them; rows come through whole."""
    chance = random.Random(seed)
    session = Session()
    known = {"mark", "by", "step", "backfill", "memory", "table", "chunk", "attempt", "has_more"}
    known |= {"snapshot", "oldest", "state", "rows", "stale", "low", "high", "start", "dropped"}
    inserted = 0
    for xid in range(count // 100):
        frames = [sent_by_others(draw_hostile(chance)) for _ in range(100)]
        row = chance.randrange(len(frames))
        frames.insert(row, encoding.insert(A, [str(xid), "x"]))
        session.commit(1000 + xid, *frames)
        rows = session.take()
        inserted += sum(row["op"] == "insert" for row in rows)
        details = [json.loads(row["detail"]) for row in rows if row["detail"] is not None]
        assert all(set(detail) <= known for detail in details)
    assert inserted == count // 100
    assert count // 2 < session.collector.skipped_messages < count
    assert session.collector.size == 0


def test_a_backfill_that_no_worker_runs_is_not_remembered_for() -> None:
    session = Session()
    invented = [message(BeginBackfill(f"{n:032x}", f"{n:032x}", "public.a")) for n in range(1000)]
    session.commit(50, *invented)
    # All places would be taken now, and the real one's memory had none.
    session.commit(51, begin())
    session.commit(52, encoding.insert(A, ["1", "new"]))
    session.commit(53, watermark("50:50:"))
    assert session.read_keys() == ["0", "2"]


def test_large_marks_of_one_transaction_are_counted_toward_the_spool() -> None:
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    running = ",".join(str(xid) for xid in range(10_000, 20_000))
    large = watermark(f"10000:20000:{running}")
    collector.feed([encoding.begin(1000, TIME_US, 7), announcement(A), *[large] * 20])
    assert collector.open_size > 20 * 100_000
    small = [sent_by_others(b'{"mark": "x"}')] * 1000
    before = collector.open_size
    collector.feed(small)
    assert collector.open_size >= before + 1000 * ENTRY_BYTES
    assert collector.take_spooled().size == collector.open_size
    assert collector.size == 0
    collector.feed([*small, encoding.commit(1000, 1048, TIME_US)])
    assert collector.spool_ended == 1048
    assert len(collector.take_spooled().entries) == 1000
    assert collector.size == 0
