from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc_core.backfill.visibility import ChangedKeys, Snapshot, find_common, join_key

CYCLE = 1 << 32


def sees(snapshot: Snapshot, *xids: int) -> list[bool]:
    found: list[bool] = snapshot.sees(np.array(xids, np.int64)).tolist()
    return found


def test_a_snapshot_reads_and_writes_postgres_text() -> None:
    for text in ("727:729:727", "10:10:", "8589934600:8589934607:8589934601,8589934605"):
        assert str(Snapshot.parse(text)) == text
    for wrong in ("", "1:2", "1:2:3,", "a:b:c", "1:2:3 "):
        with pytest.raises(ValueError, match="not a snapshot"):
            Snapshot.parse(wrong)


def test_what_ran_and_what_began_later_is_not_seen() -> None:
    assert sees(Snapshot.parse("727:729:727"), 726, 727, 728, 729, 730) == [
        True,
        False,
        True,
        False,
        False,
    ]


@given(
    st.integers(min_value=0, max_value=1 << 40),
    st.lists(st.integers(min_value=0, max_value=40), unique=True),
    st.integers(min_value=-60, max_value=60),
)
def test_ids_of_32_bits_wrap_around(xmin: int, running: list[int], offset: int) -> None:
    low = xmin + CYCLE
    snapshot = Snapshot(low, low + 50, frozenset(low + one for one in running))
    xid = low + offset
    expected = xid < low + 50 and xid not in snapshot.running
    assert sees(snapshot, xid % CYCLE) == [expected]


def test_what_may_be_open_below_an_id_is_listed_until_all_of_it_is_seen() -> None:
    listed = [
        ("100:100:", 101, (100,)),  # 100 may be open: no snapshot names what began last.
        ("100:102:100", 101, (100,)),
        ("100:105:100,103", 101, (100,)),
        ("99:105:99,100,103", 101, (99, 100)),
        ("99:100:99", 101, (99, 100)),
        ("101:102:", 101, ()),
        ("103:105:103", 101, ()),
    ]
    for text, xid, expected in listed:
        assert Snapshot.parse(text).list_open_below(xid) == expected


@given(st.data())
def test_the_common_snapshot_sees_what_all_see(data: st.DataObject) -> None:
    bounds = st.integers(min_value=100, max_value=120)
    snapshots = []
    for _ in range(data.draw(st.integers(min_value=1, max_value=3))):
        xmin, xmax = sorted((data.draw(bounds), data.draw(bounds)))
        running = data.draw(st.frozensets(st.integers(min_value=xmin, max_value=xmax), max_size=5))
        snapshots.append(Snapshot(xmin, xmax, frozenset(x for x in running if x < xmax)))
    common = find_common(snapshots)
    xids = np.arange(90, 130, dtype=np.int64)
    every = np.logical_and.reduce([one.sees(xids) for one in snapshots])
    assert (common.sees(xids) == every).all()


def test_keys_of_several_columns_are_told_apart() -> None:
    pairs = [("a", "b"), ("a:1", "b"), ("a", "1:b"), ("", "ab"), ("ab", "")]
    columns = [pa.array(column) for column in zip(*pairs, strict=True)]
    assert len(set(join_key(columns).to_pylist())) == len(pairs)
    assert join_key([pa.array(["a", None]), pa.array(["b", "c"])]).to_pylist()[1] is None


class Server:
    """A server in miniature: a commit is in the log first and is seen a while later."""

    def __init__(self, rng: random.Random, keys: int) -> None:
        self.rng = rng
        self.next_xid = CYCLE - 20  # So that ids wrap around.
        self.running: dict[int, dict[str, int | None]] = {}
        self.logged: list[int] = []  # In the log, not seen yet.
        self.seen: dict[str, int | None] = {str(k): 0 for k in range(keys)}
        self.log: list[tuple[int, dict[str, int | None]]] = []

    def begin(self) -> None:
        held = {key for changes in self.running.values() for key in changes}
        free = [key for key in self.seen if key not in held]
        chosen = self.rng.sample(free, min(len(free), self.rng.randint(1, 3)))
        version = None if self.rng.random() < 0.3 else self.next_xid
        self.running[self.next_xid] = dict.fromkeys(chosen, version)
        self.next_xid += 1

    def log_commit(self) -> None:
        open_ones = [xid for xid in self.running if xid not in self.logged]
        if open_ones:
            xid = self.rng.choice(open_ones)
            self.logged.append(xid)
            self.log.append((xid, self.running[xid]))

    def show_commit(self) -> None:
        if self.logged:
            xid = self.logged.pop(self.rng.randrange(len(self.logged)))
            self.seen |= self.running.pop(xid)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            min(self.running, default=self.next_xid), self.next_xid, frozenset(self.running)
        )


def backfill(seed: int, *, guarded: bool) -> bool:
    """Run a random history, chunks read meanwhile; whether the result is what the server has."""
    rng = random.Random(seed)
    server, memory = Server(rng, keys=12), ChangedKeys()
    result: dict[str, int | None] = {}
    told = 0
    read: list[tuple[Snapshot, dict[str, int | None]]] = []
    for _ in range(300):
        rng.choice((server.begin, server.log_commit, server.show_commit))()
        if rng.random() < 0.1 and len(read) < 3:
            keys = rng.sample(sorted(server.seen), 6)
            read.append((server.snapshot(), {key: server.seen[key] for key in keys}))
        if read and rng.random() < 0.1:
            # The watermark: all that is in the log before it is told first.
            for xid, changes in server.log[told:]:
                result |= changes
                memory.remember(np.full(len(changes), xid % CYCLE), pa.array(list(changes)))
            told = len(server.log)
            oldest = find_common(snapshot for snapshot, _ in read)
            snapshot, rows = read.pop(rng.randrange(len(read)))
            current = memory.find_current(snapshot, pa.array(list(rows)))
            kept = [
                key
                for key, is_current in zip(rows, current, strict=True)
                if is_current or not guarded
            ]
            result |= {key: rows[key] for key in kept}
            memory.forget(oldest)
    for _, changes in server.log[told:]:
        result |= changes
    while server.logged:
        server.show_commit()
    return all(server.seen[key] == version for key, version in result.items())


def test_chunks_never_put_an_older_row_over_a_newer_one() -> None:
    assert all(backfill(seed, guarded=True) for seed in range(100))


def test_without_the_rule_they_do() -> None:
    assert not all(backfill(seed, guarded=False) for seed in range(20))
