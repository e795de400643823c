"""What a lock does, whether the lake is a folder or in an object store."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from cdc_core.errors import MergeError
from cdc_core.lake_storage import lock_wait, object_locks
from cdc_core.lake_storage.local_place import LocalPlace
from cdc_core.lake_storage.locks import hold_lock
from cdc_core.lake_storage.object_place import ObjectPlace, Refused, TaggedText
from cdc_core.lake_storage.place import LakePlace
from tests.deadline import wait_for


@pytest.fixture(params=["folder", "object store"])
def lock(request: pytest.FixtureRequest, tmp_path: Path) -> LakePlace:
    if request.param == "folder":
        return LocalPlace.of(tmp_path) / "locks" / "t"
    lake: LakePlace = request.getfixturevalue("object_lake")
    return lake / "locks" / "t"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_wait, "_DEADLINE_S", 0.3)


@pytest.mark.usefixtures("impatient")
def test_a_lock_has_one_holder_at_a_time(lock: LakePlace) -> None:
    for _ in range(2):
        with hold_lock(lock, "public.t", jvm=None):
            with (
                pytest.raises(MergeError, match=r"public\.t is locked by another process"),
                hold_lock(lock, "public.t", jvm=None),
            ):
                pass
            with hold_lock(lock.parent / "other", "other", jvm=None):
                pass


def test_who_waits_gets_the_lock_and_is_alone(lock: LakePlace) -> None:
    # A second thread behind the lock would complete the pair.
    pair = threading.Barrier(2)

    def hold(_: int) -> None:
        with (
            hold_lock(lock, "t", jvm=None),
            pytest.raises(threading.BrokenBarrierError),
        ):
            pair.wait(0.1)
        pair.reset()

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(hold, range(6)))


@pytest.mark.usefixtures("impatient")
def test_a_lock_is_free_after_an_error(lock: LakePlace) -> None:
    with pytest.raises(ValueError, match="work"), hold_lock(lock, "t", jvm=None):
        raise ValueError("work")
    with hold_lock(lock, "t", jvm=None):
        pass


def leave_lease(lock: ObjectPlace) -> str:
    """Leave the lease of a holder that has died."""
    text = '{"holder": "dead"}'
    lock.write_text(text)
    return text


def test_a_lease_that_nobody_renews_is_taken_over(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = object_lake / "locks" / "t"
    leave_lease(lock)
    # The store counts whole seconds.
    monkeypatch.setattr(object_locks, "_LIFE_S", 1.0)
    with hold_lock(lock, "t", jvm=None):
        assert '"dead"' not in lock.read_text()


def test_a_lease_that_is_renewed_is_not_taken_over(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = object_lake / "locks" / "t"
    # The store counts whole seconds, so a lease of this test lives for two or three.
    monkeypatch.setattr(object_locks, "_RENEW_S", 0.1)
    monkeypatch.setattr(object_locks, "_LIFE_S", 2.0)
    monkeypatch.setattr(lock_wait, "_DEADLINE_S", 5.0)
    with hold_lock(lock, "t", jvm=None):
        before = read_lease(lock)
        with pytest.raises(MergeError, match="is locked"), hold_lock(lock, "t", jvm=None):
            pass
        assert read_lease(lock).tag != before.tag
    assert lock.read_text() == "{}"


@pytest.mark.usefixtures("impatient")
def test_who_lost_its_lease_does_not_free_it(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = object_lake / "locks" / "t"
    monkeypatch.setattr(object_locks, "_RENEW_S", 0.01)
    with hold_lock(lock, "t", jvm=None):
        text = leave_lease(lock)
    assert lock.read_text() == text


@pytest.mark.parametrize("error", [Refused("second try"), OSError("no reply")])
def test_a_holder_whose_write_got_no_reply_knows_its_own_lease(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The store acts on each third write, but the client does not learn of it."""
    lock = object_lake / "locks" / "t"
    write, writes = ObjectPlace.write_text_if, count()

    def lose_replies(place: ObjectPlace, text: str, tag: str | None) -> str:
        written = write(place, text, tag)
        if next(writes) % 3 == 0:
            raise error
        return written

    monkeypatch.setattr(object_locks, "_RENEW_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(ObjectPlace, "write_text_if", lose_replies)
        with hold_lock(lock, "t", jvm=None):
            holder = json.loads(lock.read_text())["holder"]
            wait_for(lambda: next(writes) > 20, 20, "renewals")
            assert json.loads(lock.read_text())["holder"] == holder
    with hold_lock(lock, "t", jvm=None):
        pass


@pytest.mark.usefixtures("impatient")
def test_a_lock_is_free_at_once_although_its_last_renewal_got_no_reply(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = object_lake / "locks" / "t"
    write, renewed = ObjectPlace.write_text_if, threading.Event()

    def lose_replies_of_renewals(place: ObjectPlace, text: str, tag: str | None) -> str:
        written = write(place, text, tag)
        if '"renewals": 1' not in text and text != "{}":
            renewed.set()
            raise OSError("no reply")
        return written

    monkeypatch.setattr(ObjectPlace, "write_text_if", lose_replies_of_renewals)
    monkeypatch.setattr(object_locks, "_RENEW_S", 0.01)
    with hold_lock(lock, "t", jvm=None):
        assert renewed.wait(20)
    assert lock.read_text() == "{}"


@pytest.mark.usefixtures("impatient")
def test_a_store_that_fails_does_not_grant_a_lock(
    object_lake: ObjectPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ObjectPlace) -> TaggedText:
        raise OSError("the store is down")

    monkeypatch.setattr(ObjectPlace, "read_tagged", fail)
    with (
        pytest.raises(OSError, match="the store is down"),
        hold_lock(object_lake / "locks" / "t", "t", jvm=None),
    ):
        pass


def read_lease(lock: ObjectPlace) -> TaggedText:
    found = lock.read_tagged()
    assert found is not None
    return found
