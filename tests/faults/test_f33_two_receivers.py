"""F33: two consumers want one slot: a silent capture of ours is outwaited, any other is not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from cdc_core.errors import SlotInUse
from cdc_core.settings import SourceSettings
from cdc_core.source import server
from cdc_core.source.replication import ReplicationStream
from cdc_core.source.server import Source
from cdc_core.vocabulary import Lsn
from tests.postgres_server import Database

TIMEOUT_S = 3
TAKE_OVER_S = 1.0


@pytest.fixture
def settings(database18: Database, monkeypatch: pytest.MonkeyPatch) -> SourceSettings:
    """Lend a slot whose living holder is waited for less long than a silent one is kept."""
    monkeypatch.setattr(server, "_TAKE_OVER_S", TAKE_OVER_S)
    name = database18.name
    database18.execute(f"alter database {name} set wal_sender_timeout = '{TIMEOUT_S}s'")
    database18.execute("create publication walgate for all tables")
    database18.query("select pg_create_logical_replication_slot(%s, 'pgoutput')", [f"s_{name}"])
    return SourceSettings(dsn=database18.dsn, slot=f"s_{name}")


@pytest.fixture
def holder(settings: SourceSettings) -> Iterator[ReplicationStream]:
    """Lend a capture that holds the slot and has spoken once."""
    with closing(ReplicationStream(settings)) as stream:
        stream.start(slot=settings.slot, publications=settings.publication, origin="any")
        stream.send_status(Lsn(0))
        yield stream


def test_f33_a_silent_capture_is_outwaited(
    settings: SourceSettings, holder: ReplicationStream
) -> None:
    with closing(Source(settings)) as source:
        started = time.monotonic()
        assert source.take_slot(lambda: False).active_pid == source.stream.pid != holder.pid
        assert time.monotonic() - started > TAKE_OVER_S


def test_f33_a_living_capture_keeps_the_slot(
    settings: SourceSettings, holder: ReplicationStream
) -> None:
    ended = threading.Event()

    def speak() -> None:
        while not ended.wait(0.1):
            holder.send_status(Lsn(0))

    speaker = threading.Thread(target=speak)
    speaker.start()
    try:
        with closing(Source(settings)) as source, pytest.raises(SlotInUse, match=settings.slot):
            source.take_slot(lambda: False)
    finally:
        ended.set()
        speaker.join()


def test_f33_a_consumer_of_others_keeps_the_slot(
    database18: Database, settings: SourceSettings
) -> None:
    with psycopg.connect(
        database18.dsn, autocommit=True, replication="database", application_name="other"
    ) as consumer:
        consumer.execute(
            f"START_REPLICATION SLOT {settings.slot} LOGICAL 0/0"
            " (proto_version '1', publication_names 'walgate')"
        )
        with closing(Source(settings)) as source:
            started = time.monotonic()
            with pytest.raises(SlotInUse):
                source.take_slot(lambda: False)
        assert time.monotonic() - started < TIMEOUT_S
        consumer.close()
