"""Begins a new epoch of the log with a usable slot. After a kill at any step, the next run resumes.

Recovery first records the epoch without its slot. From then on, no capture goes on with the epoch
before. Recovery records the first LSN of the epoch last, when the slot exists.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

from cdc_core.capture.diagnosis import Diagnosis
from cdc_core.crash_points import reach
from cdc_core.settings import Settings
from cdc_core.source.connection import open_connection
from cdc_core.source.membership import require_publications
from cdc_core.source.slot import Slot, read_slot, require_usable
from cdc_core.source.slot_renewal import drop_dead_slot, make_slot
from cdc_core.staging.adoption import Adoption, remember_log
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Log
from cdc_core.vocabulary import Lsn


def choose_number(diagnosis: Diagnosis, seen: int) -> int:
    """The number of the new epoch; `seen` is the highest epoch in the lake's tables."""
    known = diagnosis.epoch
    if known is not None and known.is_pending:
        return known.epoch
    return 1 + max(seen, 0 if known is None else known.epoch)


def begin_recovery(settings: Settings, diagnosis: Diagnosis, number: int) -> Epoch:
    """Record an epoch that has no slot yet, unless an earlier run did. Raises: StagingError."""
    epoch = Epoch(
        epoch=number,
        system_id=diagnosis.identity.system_id,
        timeline=diagnosis.identity.timeline,
        slot=settings.source.slot,
        publication=",".join(settings.source.publication),
        first_lsn=Lsn(0),
        started_at=datetime.now(UTC),
        reason=f"recovered: {'; '.join(error.message for error in diagnosis.breaks)}",
    )
    known = diagnosis.epoch
    if known is None or not known.is_pending:
        Log.of(settings).begin_epoch(epoch)
    elif known is not None:
        epoch = replace(epoch, reason=known.reason)
    reach("after_recovery_begun")
    return epoch


def renew_slot(settings: Settings, diagnosis: Diagnosis) -> Slot:
    """Drop the slot if it is dead; make it if it is missing. Raises: SlotInUse, SourceError."""
    source = settings.source
    with closing(open_connection(source, application_name="walgate recover")) as connection:
        require_publications(connection, source.publication)
        if diagnosis.is_slot_dead:
            drop_dead_slot(connection, source.slot)
            reach("after_slot_dropped")
        if read_slot(connection, source.slot) is None:
            make_slot(connection, source.slot)
            reach("after_slot_made")
        found = read_slot(connection, source.slot)
        return require_usable(found, name=source.slot, database=connection.info.dbname)


def finish_recovery(settings: Settings, epoch: Epoch, slot: Slot) -> Epoch:
    """Record the slot's LSN as the epoch's first: capture goes on there. Raises: StagingError."""
    assert slot.confirmed_flush is not None
    log = Log.of(settings)
    begun = replace(epoch, first_lsn=slot.confirmed_flush, started_at=datetime.now(UTC))
    log.begin_epoch(begun)
    adoption = Adoption(settings.lake.root.uri, begun.slot, begun.system_id)
    remember_log(settings.state_folder, adoption)
    reach("after_epoch_begun")
    return begun
