"""Recovery: finds why the log cannot continue from the source, lists its steps, and takes them.

It drops no table and stops no reader. The rows of the lake keep their positions of an older epoch.
What is staged in the new epoch outranks them, and a whole backfill of each table brings what
changed while no slot kept the changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from cdc_core.capture.diagnosis import Diagnosis, diagnose
from cdc_core.capture.recovery import begin_recovery, choose_number, finish_recovery, renew_slot
from cdc_core.crash_points import reach
from cdc_core.errors import Retry, SlotInUse, SourceError, SubscriptionChanged
from cdc_core.lake_layout import EPOCHS
from cdc_core.lake_storage.store_check import require_store
from cdc_core.settings import Settings
from cdc_core.source.connection import open_for_query
from cdc_core.source.first_reading import find_costly_readings
from cdc_core.source.identity import list_published_tables
from cdc_core.source.membership import require_publications
from cdc_core.source.published_tables import read_published_tables
from cdc_core.source.slot_renewal import format_drop, format_make
from cdc_core.vocabulary import Lsn, TableName
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.ledger import find_cut, queue_tables

_REASON = "a recovery began a new epoch: changes from before it may be missing"


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was found, and what is to be done; `breaks` is empty if there is nothing to do.

    `costly` says how much WAL first readings may write; None if the slot has room for it.
    """

    breaks: tuple[str, ...]
    diagnosis: Diagnosis
    number: int
    tables: tuple[TableName, ...]
    left: tuple[str, ...]
    costly: str | None

    @property
    def is_slot_made(self) -> bool:
        """Whether the recovery makes a new slot."""
        return self.diagnosis.slot is None or self.diagnosis.is_slot_dead


def plan_recovery(settings: Settings) -> Recovery:
    """Examine log, slot and server; change nothing.

    Raises: SubscriptionChanged, if only changed settings keep capture from going on; SourceError,
    StagingError.
    """
    source, lake = settings.source, Lake.of(settings)
    diagnosis = diagnose(settings, application_name="walgate recover")
    for error in diagnosis.breaks:
        if isinstance(error, SubscriptionChanged):
            raise error
    breaks = [error.message for error in diagnosis.breaks]
    cut = find_cut(lake)
    if diagnosis.epoch is None and cut is not None and not breaks:
        breaks.append(
            f"the log is gone from {lake.root}, but the tables that were merged from it are there"
        )
    merged = set() if cut is None else {str(table) for table in cut.list_named_tables()}
    with closing(open_for_query(source, application_name="walgate recover")) as connection:
        published = list_published_tables(connection, source.publication)
        major = connection.info.server_version // 10_000
        named = read_published_tables(connection, source.publication, major=major)
        readings = find_costly_readings(connection, named) if breaks else None
    return Recovery(
        tuple(breaks),
        diagnosis,
        choose_number(diagnosis, 0 if cut is None else cut.bound.epoch),
        tuple(published),
        tuple(sorted(merged - {str(table) for table in published})),
        None if readings is None else readings.explain(),
    )


def list_steps(settings: Settings, recovery: Recovery) -> Iterator[str]:
    """The steps of a recovery, in order, a line each; SQL as it is run."""
    name, root = settings.source.slot, settings.lake.root
    diagnosis = recovery.diagnosis
    yield (
        f"begin epoch {recovery.number} in {root / EPOCHS}: its changes are newer"
        " than all rows of the lake"
    )
    if diagnosis.is_slot_dead:
        yield format_drop(name)
    if recovery.is_slot_made:
        yield format_make(name)
    else:
        assert diagnosis.slot is not None
        yield f"keep slot {name}, confirmed to {diagnosis.slot.confirmed_flush}"
    names = ", ".join(map(str, recovery.tables)) or "none is published"
    yield f"queue a whole backfill of {len(recovery.tables)} tables: {names}"
    yield f"let capture continue from the slot, in epoch {recovery.number}"


def recover(settings: Settings, recovery: Recovery) -> Iterator[str]:
    """Recover, and yield each step once it is done; a second run goes on where the first ended.

    Raises: LakeError, SlotInUse, SourceError, StagingError.
    """
    _require_ready(settings, recovery)
    steps = list_steps(settings, recovery)
    epoch = begin_recovery(settings, recovery.diagnosis, recovery.number)
    yield next(steps)
    slot = renew_slot(settings, recovery.diagnosis)
    if recovery.diagnosis.is_slot_dead:
        yield next(steps)
    yield next(steps)
    since = Bound(recovery.number, Lsn(0))
    queue_tables(Lake.of(settings), recovery.tables, reason=_REASON, since=since)
    reach("after_tables_queued")
    yield next(steps)
    finish_recovery(settings, epoch, slot)
    yield next(steps)


def _require_ready(settings: Settings, recovery: Recovery) -> None:
    """Check that nothing prevents any step. Raises: LakeError, SlotInUse, SourceError."""
    require_store(settings.lake.root)
    source, slot = settings.source, recovery.diagnosis.slot
    if slot is not None and slot.active_pid is not None:
        raise SlotInUse(
            f"slot {slot.name} is in use by PID {slot.active_pid}, expected nobody: nothing was"
            " changed",
            fix="stop that consumer, then run `walgate recover --yes` again",
            retry=Retry.LATER,
        )
    # A slot can read no change that is older than its publication.
    with closing(open_for_query(source, application_name="walgate recover")) as connection:
        require_publications(connection, source.publication)
    if recovery.diagnosis.may_replicate or not recovery.is_slot_made:
        return
    name = source.slot
    drop = f"{format_drop(name)} " if recovery.diagnosis.is_slot_dead else ""
    raise SourceError(
        "the role may not replicate, so it can neither make slots nor stream: expected the"
        " attribute REPLICATION, found none; nothing was changed",
        fix="give the role that attribute, or let a role that has it run:"
        f" {drop}{format_make(name)} then run `walgate recover --yes` again",
        retry=Retry.AFTER_FIX,
    )
