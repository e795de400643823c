"""One suite for each interface: the real part and its fake in memory both pass it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from cdc_core.capture.interfaces import ChangeLog, Stream
from cdc_core.errors import Retry, SourceError, StagingError
from cdc_core.layout import CHANGES_SCHEMA, END_LSN_NOT_KNOWN
from cdc_core.settings import SourceSettings
from cdc_core.source.replication import ReplicationStream
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Fenced, Log
from cdc_core.staging.parts import seal_part
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Column, Lsn, Relation, ReplicaIdentity, TableName, TransactionId
from tests.deadline import wait_for
from tests.fakes import FakeLog, FakeStorage, FakeStream
from tests.lakes import locate_lake, on_disk, path_of
from tests.postgres_server import Database

OpenLog = Callable[..., ChangeLog]
EPOCH = Epoch(1, "742", 1, "walgate", "walgate", Lsn(100), datetime(2026, 1, 1, tzinfo=UTC), "test")
SUBSCRIPTION = Subscription(("walgate",), "any")


# The log.


@pytest.fixture(params=["real", "fake"])
def open_log(request: pytest.FixtureRequest, tmp_path: Path) -> OpenLog:
    """Lend a way to open the same log several times, as several captures would."""
    storage, spool = FakeStorage(), tmp_path / "spool"

    def open_one(subscription: Subscription = SUBSCRIPTION) -> ChangeLog:
        if request.param == "fake":
            return FakeLog(storage, spool=spool, subscription=subscription)
        return Log(locate_lake(tmp_path / "lake"), spool=spool, subscription=subscription)

    return open_one


def make_changes(commit_lsn: int, *, end_lsn: int, xid: int = 7, count: int = 2) -> pa.Table:
    """Make the changes of one transaction."""
    rows = [
        {
            "epoch": 1,
            "commit_lsn": commit_lsn,
            "seq": seq,
            "end_lsn": end_lsn,
            "xid": xid,
            "committed_at": 1000 + xid,
            "log_time": 1000 + xid,
            "table": "public.t",
            "op": "insert",
        }
        for seq in range(count)
    ]
    return pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA)


def land(log: ChangeLog, commit_lsn: int, *, xid: int = 7, epoch: Epoch = EPOCH) -> None:
    """Stage one transaction of 48 bytes."""
    part = log.write_part(make_changes(commit_lsn, end_lsn=commit_lsn + 48, xid=xid))
    log.append([part], epoch=epoch, end_lsn=Lsn(commit_lsn + 48))


def make_relation(*columns: str, oid: int = 5) -> Relation:
    """Make a relation."""
    made = tuple(
        Column(name, 1, 25, -1, "text", not_null=True, key_ordinal=None, in_identity=True)
        for name in columns
    )
    return Relation(oid, TableName("public", "t"), ReplicaIdentity.DEFAULT, made)


def test_the_staged_lsn_is_where_the_epoch_began_until_something_lands(open_log: OpenLog) -> None:
    log = open_log()
    assert log.read_epoch() is None
    log.begin_epoch(EPOCH)
    assert log.read_epoch() == open_log().read_epoch() == EPOCH
    assert log.read_staged(EPOCH) == 100
    land(log, 200)
    assert log.read_staged(EPOCH) == open_log().read_staged(EPOCH) == 248
    assert log.read_staged(replace(EPOCH, epoch=2)) == 100


def test_the_newest_epoch_is_the_newest_timeline_of_the_highest(open_log: OpenLog) -> None:
    log = open_log()
    log.begin_epoch(EPOCH)
    promoted = replace(EPOCH, timeline=2, reason="promoted")
    log.begin_epoch(promoted)
    assert log.read_epoch() == open_log().read_epoch() == promoted
    log.begin_epoch(replace(EPOCH, epoch=2))
    assert log.read_epoch() == replace(EPOCH, epoch=2)


@pytest.mark.parametrize("successor", [EPOCH, replace(EPOCH, epoch=2)], ids=["same", "next"])
def test_a_commit_that_does_not_extend_the_newest_version_is_refused(
    open_log: OpenLog, successor: Epoch
) -> None:
    first, second = open_log(), open_log()
    land(first, 200, epoch=successor)
    late = second.write_part(make_changes(200, end_lsn=248))
    with pytest.raises((StagingError, Fenced)):
        second.append([late], epoch=EPOCH, end_lsn=Lsn(248))
    with pytest.raises(Fenced):
        second.has_landed([late])
    assert second.read_staged(successor) == 248
    assert len(list(second.read_transactions(EPOCH, since=Lsn(0)))) == 1
    land(second, 300, epoch=successor)
    assert first.read_staged(successor) == 348


def test_an_append_that_did_not_land_is_known_and_may_be_tried_again(open_log: OpenLog) -> None:
    log = open_log()
    part = log.write_part(make_changes(200, end_lsn=248))
    assert not log.has_landed([part])
    log.append([part], epoch=EPOCH, end_lsn=Lsn(248))
    assert open_log().read_staged(EPOCH) == 248
    land(log, 300)
    assert log.read_staged(EPOCH) == 348


def test_transactions_are_told_from_a_commit_lsn_on_in_commit_order(open_log: OpenLog) -> None:
    log = open_log()
    for commit_lsn, xid in ((200, 9), (248, 7), (400, 8)):
        land(log, commit_lsn, xid=xid)
    assert list(log.read_transactions(EPOCH, since=Lsn(248))) == [
        TransactionId(Lsn(248), 7, 1007),
        TransactionId(Lsn(400), 8, 1008),
    ]
    assert list(log.read_transactions(EPOCH, since=Lsn(401))) == []
    assert list(log.read_transactions(replace(EPOCH, epoch=2), since=Lsn(0))) == []


def test_the_newest_log_time_is_read_with_the_staged_lsn(open_log: OpenLog) -> None:
    log, other = open_log(), open_log()
    assert log.read_log_time_us() == 0
    land(log, 200, xid=9)
    log.read_staged(EPOCH)
    assert log.read_log_time_us() == open_log().read_log_time_us() == 1009
    # A new epoch goes on from there.
    land(log, 100, xid=12, epoch=replace(EPOCH, epoch=2))
    other.read_staged(replace(EPOCH, epoch=2))
    assert other.read_log_time_us() == 1012


def test_several_spooled_parts_land_in_one_commit(open_log: OpenLog) -> None:
    log = open_log()
    log.remove_leftovers(EPOCH, Lsn(0))
    parts = []
    for _ in range(2):
        writer = log.open_spool()
        writer.write(make_changes(200, end_lsn=END_LSN_NOT_KNOWN))
        parts.append(seal_part(writer.finish(), Lsn(248)))
    log.append(parts, epoch=EPOCH, end_lsn=Lsn(248))
    other = open_log()
    assert other.read_staged(EPOCH) == 248
    assert list(other.read_transactions(EPOCH, since=Lsn(0))) == [TransactionId(Lsn(200), 7, 1007)]


def test_the_spool_is_emptied_and_private(open_log: OpenLog, tmp_path: Path) -> None:
    log = open_log()
    log.remove_leftovers(EPOCH, Lsn(0))
    left = log.open_spool()
    left.write(make_changes(200, end_lsn=END_LSN_NOT_KNOWN))
    left.finish()
    open_log().remove_leftovers(EPOCH, Lsn(0))
    assert list((tmp_path / "spool").iterdir()) == []
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700


def test_a_relation_that_was_stored_and_has_not_landed_is_unknown_to_the_next_session(
    open_log: OpenLog,
) -> None:
    log = open_log()
    landed, left = make_relation("a"), make_relation("a", "b")
    log.store_relations([(landed, Lsn(100))], epoch=1)
    land(log, 100)
    log.store_relations([(left, Lsn(200))], epoch=1)
    again = open_log()
    again.remove_leftovers(EPOCH, again.read_staged(EPOCH))
    # The transaction comes again, and is without that relation now.
    land(again, 200)
    assert open_log().read_staged(EPOCH) == 248
    third = open_log()
    third.read_staged(EPOCH)
    assert third.latest_relation(landed.oid) == landed


def test_relations_are_stored_once_and_the_newest_is_known(open_log: OpenLog) -> None:
    log = open_log()
    old, new = make_relation("a"), make_relation("a", "b")
    log.store_relations([(old, Lsn(5)), (old, Lsn(6)), (new, Lsn(7))], epoch=1)
    log.store_relations([(new, Lsn(9))], epoch=1)
    for opened in (log, open_log()):
        assert opened.latest_relation(5) == new
        assert opened.latest_relation(6) is None


def test_a_relation_that_returns_is_the_newest_after_a_restart(open_log: OpenLog) -> None:
    log = open_log()
    a, b = make_relation("a"), make_relation("a", "b")
    log.store_relations([(a, Lsn(5)), (b, Lsn(7)), (a, Lsn(9))], epoch=1)
    log.store_relations([(a, Lsn(10)), (b, Lsn(11))], epoch=1)
    log.store_relations([(a, Lsn(12))], epoch=1)
    for opened in (log, open_log()):
        assert opened.latest_relation(5) == a


def test_within_a_transaction_the_relation_that_comes_last_is_the_newest(open_log: OpenLog) -> None:
    log = open_log()
    a, b = make_relation("a"), make_relation("a", "b")
    log.store_relations([(a, Lsn(5)), (b, Lsn(5)), (a, Lsn(5)), (b, Lsn(5))], epoch=1)
    assert open_log().latest_relation(5) == b
    log.store_relations([(a, Lsn(6)), (b, Lsn(6)), (a, Lsn(6))], epoch=1)
    assert open_log().latest_relation(5) == a


def test_relations_that_another_capture_stored_are_known_once_the_staged_lsn_is_read(
    open_log: OpenLog,
) -> None:
    log, other = open_log(), open_log()
    relation = make_relation("a")
    other.store_relations([(relation, Lsn(5))], epoch=1)
    log.read_staged(EPOCH)
    assert log.latest_relation(5) == relation
    log.store_relations([(relation, Lsn(5)), (make_relation("b", oid=6), Lsn(7))], epoch=1)
    assert open_log().latest_relation(6) == make_relation("b", oid=6)


def test_a_relation_whose_first_transaction_did_not_land_is_not_the_newest(
    open_log: OpenLog,
) -> None:
    landed, lost, own = make_relation("a"), make_relation("a", "b"), make_relation("c")
    open_log().store_relations([(landed, Lsn(5)), (lost, Lsn(100))], epoch=1)
    log = open_log()
    assert log.read_staged(EPOCH) == 100
    assert log.latest_relation(5) == landed
    log.store_relations([(own, Lsn(101))], epoch=1)
    assert log.latest_relation(5) == own


def test_a_relation_of_an_older_epoch_is_not_taken_for_the_table_of_its_oid(
    open_log: OpenLog,
) -> None:
    log, other = open_log(), make_relation("of another server")
    log.store_relations([(other, Lsn(500))], epoch=1)
    log.read_staged(replace(EPOCH, epoch=2))
    assert log.latest_relation(5) is None
    log.store_relations([(other, Lsn(120))], epoch=2)
    for opened in (log, open_log()):
        assert opened.latest_relation(5) == other


def test_an_epoch_without_its_slot_is_older_than_the_same_with_it(open_log: OpenLog) -> None:
    log, pending = open_log(), replace(EPOCH, epoch=2, first_lsn=Lsn(0), timeline=7)
    log.begin_epoch(EPOCH)
    log.begin_epoch(pending)
    assert log.read_epoch() == pending
    assert pending.is_pending
    log.begin_epoch(replace(EPOCH, epoch=2))
    assert log.read_epoch() == open_log().read_epoch() == replace(EPOCH, epoch=2)


# The stream.


@pytest.fixture(params=["real", "fake"])
def stream(request: pytest.FixtureRequest) -> Iterator[Stream]:
    """Lend a started stream with a few frames in it."""
    if request.param == "fake":
        yield FakeStream([b"w" + bytes(30)] * 5)
        return
    database: Database = request.getfixturevalue("database18")
    slot = f"s_{database.name}"
    database.execute("create table t (id bigint primary key)")
    database.execute("create publication walgate for all tables")
    database.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
    database.execute("insert into t values (1), (2)")
    real = ReplicationStream(SourceSettings(dsn=database.dsn, slot=slot))
    real.start(slot=slot, publications=("walgate",), origin="any")
    yield real
    real.close()


def test_frames_come_no_more_than_asked_for_and_then_none(stream: Stream) -> None:
    first = wait_for(lambda: stream.read_frames(most=1, wait_s=0.05), 30.0, "a frame")
    assert len(first) == 1
    read: list[bytes | memoryview] = []
    # Begin, Relation, two rows, Commit; a real server may mix in keepalives.

    def has_all() -> bool:
        read.extend(stream.read_frames(most=100, wait_s=0.05))
        return len(read) >= 4

    wait_for(has_all, 30.0, "the other frames")
    assert all(bytes(frame[:1]) in {b"w", b"k"} for frame in [*first, *read])
    stream.send_status(Lsn(1))


def test_a_closed_stream_says_so(stream: Stream) -> None:
    # Both have it, though the interface does not ask for it.
    with closing(stream):  # type: ignore[type-var]
        stream.send_status(Lsn(1))
    with pytest.raises(SourceError):
        stream.send_status(Lsn(1))


def test_a_commit_says_what_its_changes_were_sent_for(open_log: OpenLog) -> None:
    log = open_log()
    assert log.read_subscription() is None
    land(log, 200)
    assert log.read_subscription() == open_log().read_subscription() == SUBSCRIPTION
    changed = Subscription(('a "b"', "é"), "none")
    land(open_log(changed), 300)
    assert log.read_staged(EPOCH) == 348
    assert log.read_subscription() == open_log().read_subscription() == changed


@on_disk
def test_the_log_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    older = CHANGES_SCHEMA.remove(CHANGES_SCHEMA.get_field_index("log_time"))
    DeltaTable.create(str(tmp_path / "staging" / "changes"), schema=older)
    with pytest.raises(StagingError, match="it lacks the column log_time") as caught:
        Log(locate_lake(tmp_path), spool=tmp_path / "spool", subscription=SUBSCRIPTION)
    assert caught.value.retry is Retry.AFTER_FIX


def test_a_commit_of_another_tool_is_passed_over_when_the_subscription_is_read(
    tmp_path: Path,
) -> None:
    log = Log(locate_lake(tmp_path), spool=tmp_path / "spool", subscription=SUBSCRIPTION)
    log.read_staged(EPOCH)
    land(log, 200)
    table = DeltaTable(path_of(log.changes_folder))
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 3 days"})
    other = Log(locate_lake(tmp_path), spool=tmp_path / "spool", subscription=SUBSCRIPTION)
    assert other.read_subscription() == SUBSCRIPTION
