"""From frames to transactions: however the stream is cut and taken, the same entries, once each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.capture import transactions
from cdc_core.capture.transactions import Collector
from cdc_core.errors import ProtocolError, UnexpectedMessage, WrongServer
from cdc_core.layout import CHANGES_SCHEMA, END_LSN_NOT_KNOWN
from cdc_core.vocabulary import Lsn, TransactionId
from tests.capture.stream import TIME_US, Entry, Sent, Step, announcement, complete, streams
from tests.protocol import encoding

EXAMPLES = 100
SENT = [
    Sent(1000, 1048, 7, (Step("announce"), Step("insert", value="x"), Step("mark"))),
    Sent(1048, 1096, 8, (Step("insert", value="y"),)),
    Sent(1200, 1248, 9, (Step("delete"), Step("truncate"))),
]


@contextmanager
def block_rows(count: int) -> Iterator[None]:
    """Have rows decoded in blocks of this many."""
    before = transactions.BLOCK_ROWS
    transactions.BLOCK_ROWS = count
    try:
        yield
    finally:
        transactions.BLOCK_ROWS = before


def collect(
    sent: list[Sent],
    plan: list[tuple[int, str]],
    staged: int,
    expected: list[TransactionId],
    log_times: dict[int, int],
) -> list[Entry]:
    """Feed a stream in pieces, taking and spooling as planned; all entries in order taken.

    Each entry must have the log time of its commit LSN.
    """
    collector = Collector(
        staged=Lsn(staged),
        expected=expected,
        complete=complete,
        log_time_us=max((time for lsn, time in log_times.items() if lsn < staged), default=0),
    )
    frames = [frame for transaction in sent for frame in transaction.frames()]
    entries: list[Entry] = []
    spooled: list[pa.Table] = []

    def take() -> None:
        if (batch := collector.take()) is not None:
            assert batch.size >= 0
            table = batch.to_table(1)
            assert batch.end_lsn == max(table.column("end_lsn").to_pylist())
            entries.extend(read_entries([table], log_times))

    for count, action in itertools.cycle(plan):
        if not frames:
            break
        piece, frames = frames[:count], frames[count:]
        position = 0
        while position < len(piece):
            position = collector.feed(piece, position)
            ended = collector.spool_ended
            if ended is not None:
                spooled.append(collector.take_spooled().to_table(1))
                entries.extend(read_entries(spooled, log_times, end_lsn=ended))
                spooled.clear()
            elif spooled or (action == "spool" and collector.open_size):
                take()
                spooled.append(collector.take_spooled().to_table(1))
        if action == "take":
            take()
    take()
    assert collector.is_replay_checked
    assert (collector.size, collector.rows, collector.closed_transactions) == (0, 0, 0)
    return entries


def read_entries(
    tables: list[pa.Table], log_times: dict[int, int], end_lsn: int | None = None
) -> list[Entry]:
    """Give a batch's entries by position; a spooled one gets its end LSN here.

    Each must have the log time of its commit LSN.
    """
    table = pa.concat_tables(tables).sort_by([("commit_lsn", "ascending"), ("seq", "ascending")])
    assert table.schema == CHANGES_SCHEMA
    rows = table.to_pylist()
    times = table.column("log_time").cast(pa.int64()).to_pylist()
    assert times == [log_times[row["commit_lsn"]] for row in rows]
    assert all((row["end_lsn"] == END_LSN_NOT_KNOWN) == (end_lsn is not None) for row in rows)
    return [
        (
            row["commit_lsn"],
            row["seq"],
            end_lsn or row["end_lsn"],
            row["xid"],
            row["op"],
            row["table"],
            tuple(row["values"] or ()),
        )
        for row in rows
    ]


def expect(sent: list[Sent]) -> list[Entry]:
    return [entry for transaction in sent for entry in transaction.entries()]


def expect_log_times(sent: list[Sent]) -> dict[int, int]:
    """The greatest commit time up to each transaction with entries, by commit LSN."""
    staged = [transaction for transaction in sent if transaction.has_entries]
    times = itertools.accumulate((one.identity.committed_at_us for one in staged), max)
    return {one.commit_lsn: time_us for one, time_us in zip(staged, times, strict=True)}


@pytest.mark.parametrize("before", [0, 1, 9])
@pytest.mark.parametrize("behind", [0, 1, 9])
def test_a_row_as_large_as_a_block_may_be_is_decoded_alone(
    before: int, behind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in one read with rows before it, and rows behind it come before the block is cut."""
    large = encoding.insert(11, ["1", "x" * 5000])
    monkeypatch.setattr("cdc_core.capture.transactions.BLOCK_BYTES", 1000)
    monkeypatch.setattr("cdc_core.protocol.tuples._MAX_BYTES", len(large))
    little = encoding.insert(11, ["2", "y" * 50])
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    frames = [
        encoding.begin(1000, TIME_US, 7),
        announcement(11),
        *[little] * before,
        large,
        large,
        *[little] * behind,
        encoding.commit(1000, 1048, TIME_US),
    ]
    assert collector.feed(frames) == len(frames)
    batch = collector.take()
    assert batch is not None
    table = batch.to_table(1).sort_by("seq")
    assert table.column("seq").to_pylist() == list(range(before + 2 + behind))
    sizes = [len(values[1]) for values in table.column("values").to_pylist()]
    assert sizes == [50] * before + [5000, 5000] + [50] * behind
    assert (collector.size, collector.rows) == (0, 0)


@pytest.mark.parametrize("order", [[5000, 50], [50, 5000], [5000, 5000]])
def test_a_large_row_is_decoded_alone_beside_rows_of_other_transactions(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All come in one read: each block is that of one transaction."""
    monkeypatch.setattr("cdc_core.capture.transactions.BLOCK_BYTES", 1000)
    monkeypatch.setattr(
        "cdc_core.protocol.tuples._MAX_BYTES", len(encoding.insert(11, ["1", "x" * 5000]))
    )
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    frames = [announcement(11)]
    for at, length in enumerate(order, 1):
        frames.insert(-1 if at == 1 else len(frames), encoding.begin(1000 * at, TIME_US, 7))
        frames.append(encoding.insert(11, ["1", "x" * length]))
        frames.append(encoding.commit(1000 * at, 1000 * at + 48, TIME_US))
    assert collector.feed(frames) == len(frames)
    batch = collector.take()
    assert batch is not None
    values = batch.to_table(1).sort_by("commit_lsn").column("values").to_pylist()
    assert [len(row[1]) for row in values] == order
    assert (collector.size, collector.rows) == (0, 0)


# How many frames come next, and what is done then; from the start again where it ends.
plans = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from(["take", "spool", "nothing"])),
    min_size=1,
    max_size=8,
)


@settings(max_examples=EXAMPLES)
@given(sent=streams(), plan=plans, rows=st.integers(1, 6))
def test_any_cut_into_feeds_batches_and_spools_gives_the_same_entries(
    sent: list[Sent], plan: list[tuple[int, str]], rows: int
) -> None:
    with block_rows(rows):
        assert collect(sent, plan, 0, [], expect_log_times(sent)) == expect(sent)


@settings(max_examples=EXAMPLES)
@given(sent=streams(), plan=plans, rows=st.integers(1, 6), data=st.data())
def test_a_replay_from_any_confirmed_lsn_gives_only_what_is_not_staged(
    sent: list[Sent], plan: list[tuple[int, str]], rows: int, data: st.DataObject
) -> None:
    reached = data.draw(st.integers(0, len(sent)), "staged transactions")
    confirmed = data.draw(st.integers(0, reached), "confirmed transactions")
    staged = sent[reached - 1].end_lsn if reached else 0
    expected = [t.identity for t in sent[confirmed:reached] if t.has_entries]
    again = sent[confirmed:]
    if confirmed and again:
        # A new session announces again what it sends.
        head = tuple(Step("announce", oid) for oid in (11, 22))
        again = [replace(again[0], steps=(*head, *again[0].steps)), *again[1:]]
    with block_rows(rows):
        found = collect(again, plan, staged, expected, expect_log_times(sent))
    assert found == expect(sent[reached:])


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ([SENT[0].identity], "sent a transaction at 0/418 that staging does not have"),
        ([SENT[1].identity], "sent transaction 7 at 0/3E8"),
        ([replace(SENT[0].identity, xid=70), SENT[1].identity], "staging has 70"),
        ([replace(SENT[0].identity, committed_at_us=5), SENT[1].identity], "sent transaction 7"),
        (
            [*(t.identity for t in SENT[:2]), TransactionId(Lsn(1090), 1, 1)],
            "did not send the transaction",
        ),
    ],
)
def test_a_replay_of_another_history_stages_nothing(
    expected: list[TransactionId], said: str
) -> None:
    collector = Collector(staged=Lsn(1096), expected=expected, complete=complete, log_time_us=0)
    frames = [frame for transaction in SENT for frame in transaction.frames()]
    with pytest.raises(WrongServer, match=said):
        collector.feed(frames)
    assert collector.take() is None


def test_what_waits_for_its_replay_check_is_told() -> None:
    expected = [SENT[0].identity, SENT[1].identity]
    collector = Collector(staged=Lsn(1096), expected=expected, complete=complete, log_time_us=0)
    collector.feed(SENT[0].frames())
    assert not collector.is_replay_checked
    collector.feed(SENT[1].frames())
    assert collector.is_replay_checked


INSIDE = [
    ("a Begin", encoding.begin(2000, 1, 5)),
    ("the Commit of another", encoding.commit(999, 1048, 1)),
    ("a Truncate of an unknown table", encoding.truncate([11, 33], 0)),
    ("a Message cut short", encoding.logical_message(1, 5, b"walgate", b"{}")[:-1]),
]
OUTSIDE = [
    ("a row", encoding.insert(11, ["1", None])),
    ("a Commit", encoding.commit(1000, 1048, 1)),
    ("a Relation", announcement(11)),
    ("a Truncate", encoding.truncate([11], 0)),
    ("a transactional Message", encoding.logical_message(1, 5, b"walgate", b'{"mark": "m"}')),
    ("a foreign Message", encoding.logical_message(1, 5, b"other", b"")),
    ("a Begin before the last end", encoding.begin(1040, 1, 5)),
]


@pytest.mark.parametrize(
    ("at", "wrong"),
    [pytest.param(2, frame, id=f"{name} inside") for name, frame in INSIDE]
    + [pytest.param(len(SENT[0].frames()), frame, id=f"{name} outside") for name, frame in OUTSIDE],
)
def test_an_illegal_order_raises_and_changes_nothing(at: int, wrong: bytes) -> None:
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    frames = [frame for transaction in SENT for frame in transaction.frames()]
    collector.feed(frames[:at])
    with pytest.raises(ProtocolError):
        collector.feed([wrong])
    collector.feed(frames[at:])
    batch = collector.take()
    assert batch is not None
    assert read_entries([batch.to_table(1)], expect_log_times(SENT)) == expect(SENT)
    assert (collector.size, collector.rows) == (0, 0)


def test_a_row_of_a_table_that_was_not_announced_is_refused() -> None:
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    bare = Sent(1000, 1048, 7, (Step("insert", value="x"),))
    collector.feed(bare.frames())
    with pytest.raises(UnexpectedMessage, match="not announced"):
        collector.take()


def test_nothing_is_taken_while_the_only_transaction_is_open() -> None:
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    collector.feed(SENT[0].frames()[:-1])
    assert collector.take() is None
    collector.feed(SENT[0].frames()[-1:])
    batch = collector.take()
    assert batch is not None
    assert (batch.rows, batch.end_lsn) == (1, 1048)


def test_rows_are_sorted_by_table_so_that_one_table_is_read_without_the_others() -> None:
    steps = [Step("announce", 11), Step("announce", 22)]
    steps += [Step("insert", oid, "v") for oid in (22, 11, 22, 11)] + [Step("mark")]
    collector = Collector(staged=Lsn(0), expected=[], complete=complete, log_time_us=0)
    collector.feed(Sent(1000, 1048, 7, tuple(steps)).frames())
    batch = collector.take()
    assert batch is not None
    table = batch.to_table(3)
    assert table.column("epoch").to_pylist() == [3] * 5
    names = table.column("table").to_pylist()
    runs = [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]
    assert len(runs) == 3, names
    assert table.column("seq").to_pylist() == sorted(
        range(5), key=lambda seq: (runs.index(names_by_seq(table)[seq]), seq)
    )


def names_by_seq(table: pa.Table) -> dict[int, str | None]:
    """Give the table of each entry."""
    pairs = zip(table.column("seq").to_pylist(), table.column("table").to_pylist(), strict=True)
    return dict(pairs)
