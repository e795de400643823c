"""A capture run: takes the slot, checks that the slot continues the log, and loops.

At the start, the log decides: capture reads the staged LSN from it, and the server must be the one
that the log was filled from. If a session loses its connection, its spool or the race for a commit,
the run begins another session from the log. An error that needs a person ends the run.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, partial

from cdc_core.backfill.marks import RequestSweep, Watermark
from cdc_core.backoff import Backoff
from cdc_core.capture.backfills import OtherRule, Spooled
from cdc_core.capture.concealing import find_other_rule, make_conceal
from cdc_core.capture.continuity import require_begun, require_server
from cdc_core.capture.freed_memory import return_freed_memory
from cdc_core.capture.interfaces import ChangeLog
from cdc_core.capture.known_relations import KnownRelations
from cdc_core.capture.loop import CaptureLoop, RunLimit
from cdc_core.capture.marker import Marker
from cdc_core.capture.progress import CaptureProgress
from cdc_core.capture.replay import blame_settings
from cdc_core.capture.reporter import Reporter
from cdc_core.capture.status import StatusSender
from cdc_core.capture.tending import LogTending
from cdc_core.capture.transactions import Collector
from cdc_core.capture.writer import Writer
from cdc_core.coordination.live import Figures
from cdc_core.coordination.redis_coordination import RedisCoordination
from cdc_core.errors import Retry, SlotInUse, SourceSilent, StreamRefused, WalgateError
from cdc_core.lake_storage.store_check import require_store
from cdc_core.protocol.concealment import Concealment
from cdc_core.protocol.messages import Announcement
from cdc_core.settings import Settings
from cdc_core.source.primary import History
from cdc_core.source.server import MarkConnection, Source
from cdc_core.source.slot import Slot, require_continuation
from cdc_core.spooled import Chunk, SweepRequest
from cdc_core.staging.adoption import Adoption, remember_log, require_log
from cdc_core.staging.chunks import ChunkFolder
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Fenced, Log
from cdc_core.staging.subscriptions import SubscriptionChange, find_subscription_change
from cdc_core.vocabulary import Lsn, Relation

# After a cut connection, a session can begin again within a second. While the server is down, a try
# every half minute costs little, and the slot moves soon after the server is back. The jitter keeps
# the captures of one server from connecting all at once.
_BACKOFF = Backoff(first_s=0.5, max_s=30.0)
_MIN_JITTER = 0.5
# One transaction may keep the server silent for too long. Capture then doubles the silence timeout,
# up to this factor.
_MAX_PATIENCE = 8

_logger = logging.getLogger("walgate.capture")


@dataclass(frozen=True, slots=True)
class _Run:
    """The arguments of a run, and the lease that its sessions share."""

    settings: Settings
    bound: RunLimit
    lease: RedisCoordination
    watch: Callable[[Figures], None]
    note_change: Callable[[SubscriptionChange, int, Lsn], None]


@dataclass(frozen=True, slots=True)
class _Start:
    """What a session reads after it has taken the slot."""

    epoch: Epoch
    staged: Lsn
    slot: Slot


def open_log(settings: Settings) -> ChangeLog:
    """Open the lake's log; make it if it never existed.

    Raises: StagingError; LakeError if the lake's store cannot do what Walgate needs.
    """
    require_store(settings.lake.root)
    require_log(settings.state_folder, root=settings.lake.root, slot=settings.source.slot)
    return Log.of(settings)


def run_capture(
    settings: Settings,
    bound: RunLimit,
    *,
    open_log: Callable[[Settings], ChangeLog] = open_log,
    watch: Callable[[Figures], None] | None = None,
    note_change: Callable[[SubscriptionChange, int, Lsn], None] | None = None,
) -> None:
    """Replicate until the run may end; call `watch` with each set of figures.

    If publications or origin differ from those of the staged changes, capture calls `note_change`
    before its first commit, with the epoch and the staged LSN. After a crash it may call it again.
    Raises: WalgateError.
    """
    return_freed_memory()
    lease = RedisCoordination(settings.redis, slot=settings.source.slot)
    run = _Run(settings, bound, lease, watch or _overlook, note_change or _overlook)
    # Sessions in a row that ended before they had staged a batch.
    failures = 0
    patience = 1
    has_streamed = False
    try:
        while True:
            streamed = CaptureProgress(Lsn(0), Lsn(0), Lsn(0))
            try:
                _run_session(run, open_log(settings), streamed, patience)
            except Fenced:
                _logger.warning("another writer committed, starting again", extra={"fields": {}})
            except WalgateError as exc:
                # The caller decides if no session has streamed yet, or if the slot is in use.
                has_streamed = has_streamed or streamed.state != "starting"
                final = exc.retry is Retry.AFTER_FIX or isinstance(exc, SlotInUse)
                if final or not has_streamed or bound.is_met():
                    raise
                _logger.warning("session ended", extra={"fields": {"reason": exc.message}})
                if isinstance(exc, SourceSilent):
                    patience = min(2 * patience, _MAX_PATIENCE)
            else:
                return
            if streamed.batches:
                failures, patience = 0, 1
            failures += 1
            jitter = random.uniform(_MIN_JITTER, 1.0)  # noqa: S311 - no secret.
            bound.stop.wait(jitter * _BACKOFF.pause_after(failures))
            if bound.is_met():
                return
    finally:
        lease.close()


def _overlook(*_: object) -> None:
    pass


def _run_session(run: _Run, log: ChangeLog, progress: CaptureProgress, patience: int) -> None:
    silence_s = patience * run.settings.source.silence_timeout
    source = Source(run.settings.source.model_copy(update={"silence_timeout": silence_s}))
    try:
        start = _take_slot(run.settings, source, log, run.bound)
        log.remove_leftovers(start.epoch, start.staged)
        _stream(run, source, log, start, progress)
    except Fenced:
        source.require_held()
        raise
    finally:
        source.close()


def _take_slot(settings: Settings, source: Source, log: ChangeLog, bound: RunLimit) -> _Start:
    """Check the server, take the slot, then read the log and check the server again.

    Another run may have written to the log while this one waited for the slot.
    Raises: Fenced if the epoch has changed since, WalgateError.
    """
    find_switch = cache(source.stream.switch_point)  # A started stream takes no more commands.
    known = log.read_epoch()
    if known is not None:
        _read_staged(settings, source, log, known, find_switch)
    source.read_slot()
    source.require_publications()
    slot = source.take_slot(bound.is_met)
    assert slot.confirmed_flush is not None
    epoch = log.read_epoch()
    if epoch != known:
        raise Fenced
    staged = None if epoch is None else _read_staged(settings, source, log, epoch, find_switch)
    if epoch is None:
        epoch = Epoch(
            epoch=1,
            system_id=source.server.system_id,
            timeline=source.server.timeline,
            slot=slot.name,
            publication=",".join(settings.source.publication),
            first_lsn=slot.confirmed_flush,
            started_at=datetime.now(UTC),
            reason="adopted",
        )
        log.begin_epoch(epoch)
        _logger.info("slot adopted", extra={"fields": {"slot": slot.name}})
    elif epoch.timeline != source.server.timeline:
        # The switch point is at or past the staged LSN now. Once the staged LSN has passed it, only
        # this row shows that capture followed the promotion.
        epoch = replace(
            epoch,
            timeline=source.server.timeline,
            started_at=datetime.now(UTC),
            reason="promoted",
        )
        log.begin_epoch(epoch)
        _logger.info("promotion followed", extra={"fields": {"timeline": epoch.timeline}})
    remember_log(
        settings.state_folder, Adoption(settings.lake.root.uri, epoch.slot, epoch.system_id)
    )
    if staged is None:
        staged = log.read_staged(epoch)
    # Read the current LSN only now: capture waited for the slot, so the one read before is older.
    require_continuation(slot, staged=staged, current=source.read_current_lsn())
    return _Start(epoch, staged, slot)


def _read_staged(
    settings: Settings,
    source: Source,
    log: ChangeLog,
    epoch: Epoch,
    find_switch: Callable[[int], Lsn],
) -> Lsn:
    """Read an epoch's staged LSN; check that the server continues it. Raises: WalgateError."""
    require_begun(epoch)
    staged = log.read_staged(epoch)
    require_server(
        epoch,
        staged=staged,
        slot=settings.source.slot,
        system_id=source.server.system_id,
        timeline=source.server.timeline,
        find_switch=find_switch,
    )
    return staged


def _stream(
    run: _Run, source: Source, log: ChangeLog, start: _Start, progress: CaptureProgress
) -> None:
    settings, bound = run.settings, run.bound
    history = History(source.server.system_id, source.server.timeline)
    confirmed = start.slot.confirmed_flush
    assert confirmed is not None
    known = KnownRelations(log.latest_relation)

    def complete(announcement: Announcement, xid: int) -> Relation:
        previous = known.find(announcement.oid)
        relation = source.complete_relation(announcement, previous=previous, xid=xid)
        known.note(relation)
        return relation

    change = find_subscription_change(log.read_subscription(), log.subscription)
    changed = None if change is None else change.explain()

    def prepare() -> None:
        if change is not None:
            run.note_change(change, start.epoch.epoch, start.staged)

    choose = make_conceal(settings, log.latest_relation)

    def conceal(relation: Relation) -> Concealment | None:
        concealment = choose(relation)
        if concealment is not None:
            # Compare later announcements and chunks with this one, excluded columns included.
            left_out = concealment.conceal_relation(relation).left_out
            known.note(replace(relation, left_out=left_out))
        return concealment

    trimmed = log.read_trimmed(start.epoch)
    collector = Collector(
        staged=start.staged,
        expected=log.read_transactions(start.epoch, since=max(confirmed, trimmed)),
        trimmed=trimmed,
        log_time_us=log.read_log_time_us(),
        changed=changed,
        complete=complete,
        conceal=conceal,
        spooled=_find_spooled(settings, known),
    )
    progress.staged = start.staged
    progress.confirmed = confirmed
    progress.is_replay_checked = collector.is_replay_checked
    progress.current = source.server.current
    term = run.lease.take_term()
    loop = CaptureLoop(
        stream=source.stream,
        log=log,
        collector=collector,
        writer=Writer(
            log,
            epoch=start.epoch,
            progress=progress,
            is_stopped=bound.is_met,
            prepare=prepare,
        ),
        status=StatusSender(
            source.stream, progress=progress, timeout_s=source.server.wal_sender_timeout_s
        ),
        marker=Marker(
            partial(MarkConnection, settings.source, history),
            progress=progress,
            heartbeat_s=settings.capture.heartbeat_seconds,
        ),
        progress=progress,
        settings=settings.capture,
        epoch=start.epoch.epoch,
    )
    tending = LogTending(log, progress=progress, epoch=start.epoch.epoch)
    reporter = Reporter(
        run.lease, progress=progress, term=term, epoch=start.epoch.epoch, watch=run.watch
    )
    _logger.info(
        "capture started",
        extra={
            "fields": {
                "slot": start.slot.name,
                "epoch": start.epoch.epoch,
                "staged_lsn": str(start.staged),
                "term": term or "none",
            }
        },
    )
    try:
        loop.run(bound)
    except StreamRefused as error:
        loop.abandon()
        raise blame_settings(error, changed) from error
    except BaseException:
        loop.abandon()
        raise
    finally:
        tending.finish()
        reporter.finish()
    _logger.info("capture stopped", extra={"fields": {"staged_lsn": str(progress.staged)}})


def _find_spooled(settings: Settings, known: KnownRelations) -> Spooled:
    """Access to the spool; compares each chunk and sweep with its table's newest relation."""
    folder = ChunkFolder(settings.lake.spool)

    def load_chunk(step: Watermark) -> Chunk | None:
        chunk = folder.load(
            backfill=step.backfill, memory=step.memory, number=step.chunk, attempt=step.attempt
        )
        if chunk is None:
            return None
        other = find_other_rule(settings, chunk.relation, known.find(chunk.relation.oid))
        if other is not None:
            raise OtherRule(other)
        return replace(chunk, relation=known.compare(chunk.relation))

    def load_sweep(step: RequestSweep) -> SweepRequest | None:
        sweeping = folder.load_sweep(step.backfill)
        if sweeping is None:
            return None
        return replace(sweeping, relation=known.compare(sweeping.relation))

    return Spooled(load_chunk, load_sweep, folder.is_claimed, known.note)
