"""Leases of readers: how long they live, and when they end."""

from __future__ import annotations

import gc
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake import leases
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.leases import LIFE, Lease, Leased, holding_lease, list_leased
from tests.deadline import wait_for
from tests.lakes import locate_lake, on_disk, path_of

AT = Bound(1, Lsn(5))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(locate_lake(tmp_path))


def list_files(lake: Lake) -> list[LakePlace]:
    return [*(lake.root / "leases").list_matching("*")]


def find_file(lake: Lake) -> LakePlace:
    """The file of the only lease. A renewal may be under way: it writes a copy first."""
    (place,) = [file for file in list_files(lake) if not file.name.startswith(".")]
    return place


def list_now(lake: Lake) -> set[Leased]:
    return list_leased(lake, now=datetime.now(UTC))


def test_a_lease_lives_as_long_as_its_block(lake: Lake) -> None:
    assert list_now(lake) == set()
    with holding_lease(lake, AT), holding_lease(lake, Bound(1, Lsn(7))):
        assert list_now(lake) == {Leased(AT), Leased(Bound(1, Lsn(7)))}
    assert list_now(lake) == set()
    assert list_files(lake) == []


def test_a_lease_ends_with_the_last_thing_that_refers_to_it(lake: Lake) -> None:
    lease = Lease(lake, AT)
    other = lease
    del lease
    gc.collect()
    assert list_now(lake) == {Leased(AT)}
    del other
    gc.collect()
    assert list_files(lake) == []


def test_the_lease_of_a_killed_process_ends_by_itself(lake: Lake) -> None:
    lease = Lease(lake, AT)
    now = datetime.now(UTC)
    assert list_leased(lake, now=now + LIFE - timedelta(minutes=1)) == {Leased(AT)}
    assert list_leased(lake, now=now + LIFE + timedelta(minutes=1)) == set()
    assert list_files(lake) == []
    lease.end()


@on_disk  # It changes the time of a file.
def test_a_lease_is_renewed(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_RENEW_S", 0.01)
    with holding_lease(lake, AT):
        file = path_of(find_file(lake))
        os.utime(file, (0, 0))
        wait_for(lambda: file.stat().st_mtime > 0, 30, "a renewal")


@on_disk  # A store has no folders, so nothing can take the name of one.
def test_who_cannot_write_reads_without_a_lease(lake: Lake) -> None:
    (lake.root / "leases").write_text("no folder")
    with holding_lease(lake, AT):
        pass


def test_a_lease_that_is_being_written_is_passed_over(lake: Lake) -> None:
    with holding_lease(lake, AT):
        (lake.root / "leases" / "torn.json").write_text('{"epo')
        assert list_now(lake) == {Leased(AT)}


@on_disk  # It changes the time of a file.
def test_a_lease_keeps_versions_also_after_it_was_renewed(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_RENEW_S", 0.01)
    with holding_lease(lake, AT) as lease:
        lease.keep_version(TableName("public", "t"), 3)
        lease.keep_version(TableName("public", "t"), 4)
        file = path_of(find_file(lake))
        os.utime(file, (0, 0))
        wait_for(lambda: file.stat().st_mtime > 0, 30, "a renewal")
        assert list_now(lake) == {Leased(AT, frozenset({("public.t", 3), ("public.t", 4)}))}
