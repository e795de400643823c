"""Finds why capture cannot go on from the slot, without a change to the slot or to the log.

These are the checks of a capture run. Here a failed check does not end the others. The last check
takes the slot for a moment to see what the server would send again, and confirms nothing. Both
`walgate recover` and `walgate check` report the result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from cdc_core.capture.continuity import require_begun, require_server
from cdc_core.capture.resending import require_same_history
from cdc_core.errors import Retry, SubscriptionChanged, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.connection import open_connection
from cdc_core.source.identity import Identity, read_identity
from cdc_core.source.membership import require_publications
from cdc_core.source.replication import ReplicationStream
from cdc_core.source.role import may_replicate
from cdc_core.source.slot import (
    Slot,
    read_slot,
    require_continuation,
    require_kind,
    require_usable,
)
from cdc_core.staging.adoption import require_log
from cdc_core.staging.epochs import Epoch, read_newest_epoch, read_staged_lsn
from cdc_core.staging.log import Log
from cdc_core.vocabulary import Lsn


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The state of log, server and slot, and every reason why capture cannot go on.

    `breaks` are the errors that a capture would end with. `discontinuities` are the breaks where
    log, server and slot disagree; a problem of the source alone is not among them. `epoch` is the
    newest of the log; None if the lake has no log. `is_slot_dead`: the server has given up the
    slot, or the slot is this log's and capture can never go on from it. Changed settings do not
    make a slot dead.
    """

    breaks: tuple[WalgateError, ...]
    discontinuities: tuple[WalgateError, ...]
    identity: Identity
    may_replicate: bool
    epoch: Epoch | None = None
    staged: Lsn | None = None
    slot: Slot | None = None
    is_slot_dead: bool = False


def diagnose(settings: Settings, *, application_name: str) -> Diagnosis:
    """Compare what the log holds with what the server has. Changes nothing.

    Raises: SourceError, also if capture cannot read slots of this slot's kind.
    """
    source = settings.source
    breaks: list[WalgateError] = []
    epoch = read_newest_epoch(settings.lake.root)
    if epoch is None:
        state, root = settings.state_folder, settings.lake.root
        _note(breaks, lambda: require_log(state, root=root, slot=source.slot))
    with closing(
        open_connection(source, application_name=application_name, answer_s=source.silence_timeout)
    ) as connection:
        database = connection.info.dbname
        may = may_replicate(connection)
        # Capture may run now. Read in this order, the slot cannot seem ahead of the log, nor the
        # log ahead of the server.
        slot = read_slot(connection, source.slot)
        staged = None if epoch is None else read_staged_lsn(settings.lake.root, epoch)
        identity = read_identity(connection)
        if slot is not None:
            require_kind(slot, database=database)
        if epoch is None and not breaks:
            return Diagnosis((), (), identity, may, slot=slot)
        gone = tuple(breaks)
        _note(breaks, lambda: require_publications(connection, source.publication))
        _note(breaks, lambda: require_usable(slot, name=source.slot, database=database))
    is_lost = slot is not None and (slot.is_lost or slot.confirmed_flush is None)
    if epoch is None or staged is None:
        return Diagnosis(tuple(breaks), gone, identity, may, slot=slot, is_slot_dead=is_lost)
    other = _compare(settings, epoch, staged, slot=slot, identity=identity, may=may)
    is_ours = (identity.system_id, source.slot) == (epoch.system_id, epoch.slot)
    is_cut_off = any(not isinstance(error, SubscriptionChanged) for error in other)
    is_ahead = slot is not None and (slot.confirmed_flush or 0) > staged
    return Diagnosis(
        breaks=tuple(breaks + other),
        discontinuities=tuple(other),
        identity=identity,
        may_replicate=may,
        epoch=epoch,
        staged=staged,
        slot=slot,
        is_slot_dead=is_lost or (is_cut_off and is_ours and not is_ahead and not epoch.is_pending),
    )


def _compare(
    settings: Settings,
    epoch: Epoch,
    staged: Lsn,
    *,
    slot: Slot | None,
    identity: Identity,
    may: bool,
) -> list[WalgateError]:
    """Find what keeps the slot and the server from continuing where the log ends."""
    source = settings.source
    found: list[WalgateError] = []

    def find_switch(timeline: int) -> Lsn:
        if not may:
            return staged  # This role cannot read the server's history.
        with closing(ReplicationStream(source)) as stream:
            return stream.switch_point(timeline)

    _note(found, lambda: require_begun(epoch))
    if found:
        return found
    _note(
        found,
        lambda: require_server(
            epoch,
            staged=staged,
            slot=source.slot,
            system_id=identity.system_id,
            timeline=identity.timeline,
            find_switch=find_switch,
        ),
    )
    if slot is None or slot.is_lost or slot.confirmed_flush is None:
        return found
    if not found:
        _note(found, lambda: require_continuation(slot, staged=staged, current=identity.current))
    if not found and may and slot.active_pid is None:
        log = Log.of(settings)
        _note(found, lambda: require_same_history(source, log, epoch, staged=staged, slot=slot))
    return found


def _note(found: list[WalgateError], require: Callable[[], object]) -> None:
    """Run a check and keep its error. Raises: an error that another try may cure."""
    try:
        require()
    except WalgateError as error:
        if error.retry is not Retry.AFTER_FIX:
            raise
        found.append(error)
