"""What the source and the live figures say at one moment, for sensors and checks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from cdc_core.coordination.lease import Lease
from cdc_core.coordination.live import Figures
from cdc_core.errors import SourceError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_briefly
from cdc_core.source.identity import read_identity
from cdc_core.source.preflight import read_slot_budget
from cdc_core.source.slot import Slot, read_slot
from cdc_core.vocabulary import Lsn


@dataclass(frozen=True, slots=True)
class Look:
    """The slot and the bytes it may hold back, the source's WAL, and what capture shows."""

    slot: Slot | None
    budget: int
    current: Lsn
    figures: Figures | None


def look_at_source(settings: Settings) -> Look | SourceError:
    """Look once, without waiting for a server that is away; the error if it cannot be seen."""
    source = settings.source
    try:
        with closing(open_briefly(source, application_name="walgate look")) as connection:
            slot = read_slot(connection, source.slot)
            budget = read_slot_budget(connection, source)
            current = read_identity(connection).current
    except SourceError as error:
        return error
    with closing(Lease(settings.redis, slot=source.slot)) as lease:
        return Look(slot, budget, current, lease.read_figures())
