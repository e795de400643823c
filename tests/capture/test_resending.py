"""`walgate check` accepts what the server sends again exactly where capture would."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from cdc_core.capture.replay import Replay
from cdc_core.capture.resending import ResendingCheck
from cdc_core.capture.transactions import Collector
from cdc_core.errors import WrongServer
from cdc_core.vocabulary import Lsn, TransactionId
from tests.capture.stream import Sent, complete, streams
from tests.protocol import encoding

EXAMPLES = 300


@settings(max_examples=EXAMPLES)
@given(streams(), st.integers(0, 6), st.data())
def test_the_check_and_capture_accept_the_same_replays(
    sent: list[Sent], staged_count: int, data: st.DataObject
) -> None:
    staged = Lsn(sent[min(staged_count, len(sent)) - 1].end_lsn if staged_count else 1)
    right = [one.identity for one in sent if one.has_entries and one.commit_lsn < staged]
    assert is_accepted_by_check(sent, staged, right)
    expected = data.draw(damaged(right))
    assert is_accepted_by_check(sent, staged, expected) == (expected == right)
    assert is_accepted_by_capture(sent, staged, expected) == (expected == right)


@st.composite
def damaged(draw: st.DrawFn, right: list[TransactionId]) -> list[TransactionId]:
    """Draw what staging might hold instead: one transaction more, less, or another; or the same."""
    held = list(right)
    at = draw(st.integers(0, len(held)))
    match draw(st.sampled_from(["same", "more", "less", "other"])):
        case "more":
            held.insert(at, TransactionId(Lsn(1), 1, 1))
        case "less":
            del held[at : at + 1]
        case "other":
            held[at : at + 1] = [replace(one, xid=one.xid + 1) for one in held[at : at + 1]]
    return held


def is_accepted_by_check(sent: list[Sent], staged: Lsn, expected: list[TransactionId]) -> bool:
    """Whether the check of what is sent again ends without another history."""
    check, end = ResendingCheck(Replay(staged, expected)), sent[-1].end_lsn
    frames = [frame for one in sent for frame in one.frames()]
    try:
        for frame in [*frames, encoding.keepalive(end, 0)]:
            check.take(frame, Lsn(end))
            if check.is_over:
                return True
    except WrongServer:
        return False
    raise AssertionError("the check did not end at the keepalive")


def is_accepted_by_capture(sent: list[Sent], staged: Lsn, expected: list[TransactionId]) -> bool:
    """Whether the collector takes all of it, and misses nothing that staging holds."""
    collector = Collector(staged=staged, expected=expected, complete=complete, log_time_us=0)
    try:
        collector.feed([frame for one in sent for frame in one.frames()])
    except WrongServer:
        return False
    return collector.is_replay_checked
