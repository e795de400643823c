"""Reads the state of the source and the live figures at one moment, for sensors and checks."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from cdc_core.coordination.live import Figures
from cdc_core.coordination.redis_coordination import RedisCoordination
from cdc_core.errors import SourceError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_quick_query
from cdc_core.source.identity import read_identity
from cdc_core.source.retention import (
    Growth,
    Retention,
    find_retention,
    measure_growth,
    read_slot_budget,
)
from cdc_core.source.slot import Slot, read_slot
from cdc_core.vocabulary import Lsn


@dataclass(frozen=True, slots=True)
class SourceView:
    """The slot, its budget, the end of the source's WAL, live figures, growth of the held WAL.

    Units: bytes, bytes per second.
    """

    slot: Slot | None
    budget: int
    current: Lsn
    figures: Figures | None
    growth: float | None

    @property
    def retention(self) -> Retention | None:
        """What the slot holds back; None if it is missing or lost."""
        return None if self.slot is None else find_retention(self.slot, self.budget)


def read_source_view(settings: Settings, growth: Growth | None = None) -> SourceView | SourceError:
    """Read the source once, without a long wait for a server that is away; return its error.

    `growth` keeps the readings of a caller that reads repeatedly. Without it, the rate comes from
    the live figures; if these have none, this takes a second more.
    """
    source = settings.source
    figures = read_figures(settings)
    try:
        with closing(open_for_quick_query(source, application_name="walgate look")) as connection:
            slot = read_slot(connection, source.slot)
            budget = read_slot_budget(connection, source)
            current = read_identity(connection).current
            rate = None if figures is None else figures.retained_growth
            if growth is not None and slot is not None:
                rate = growth.look(slot)
            elif rate is None and slot is not None:
                rate = measure_growth(connection, slot)
    except SourceError as error:
        return error
    return SourceView(slot, budget, current, figures, rate)


def read_figures(settings: Settings) -> Figures | None:
    """The live figures of the running capture; None if there are none."""
    with closing(RedisCoordination(settings.redis, slot=settings.source.slot)) as lease:
        return lease.read_figures()
