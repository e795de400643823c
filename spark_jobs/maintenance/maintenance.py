"""Maintains a lake: drops cuts, removes files, compacts, and finds the floor of the log.

Each step can be killed, and the next maintenance does it again. Merges, readers, capture and a
second maintenance may run at the same time. Only a table's own lock is held, and only while its
files are written as one or removed. Capture trims, compacts and cleans the log itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain

import pyarrow as pa
from deltalake.exceptions import DeltaError

from cdc_core.errors import WalgateError
from cdc_core.lake_layout import DELTA_LOG, LEASES
from cdc_core.lake_storage.cleaning import Cleaned, EarlyCommits, Space, clean_table
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.tombstones import Tombstones
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import UNIX_START
from spark_jobs.delta.abandoned_attempts import clear_attempts
from spark_jobs.lake.lake import Bound, Epoch, Lake, open_table
from spark_jobs.lake.leases import list_leased
from spark_jobs.lake.ledger import Cut
from spark_jobs.maintenance.compaction import compact_target
from spark_jobs.maintenance.cut_ledgers import (
    find_newest_before,
    forget_dropped,
    list_named_versions,
    read_cuts,
    thin_cuts,
)
from spark_jobs.maintenance.ledgers import compact_ledger
from spark_jobs.maintenance.log_floor import (
    Floor,
    find_floor,
    find_unmerged_starts,
    queue_halted,
)
from spark_jobs.maintenance.old_entries import remove_old_entries
from spark_jobs.maintenance.thinning import Keeping


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a maintenance found and did.

    `cuts` are the kept cuts, oldest first. `cleaned` sums up tables and ledgers, `log` the files of
    the log. `problems` has a line for each table or ledger with work left undone, and says why.
    """

    cuts: tuple[Cut, ...]
    dropped_cuts: int
    floor: Floor | None
    queued: tuple[str, ...]
    compacted: tuple[str, ...]
    cleaned: Cleaned
    log: Space
    problems: tuple[str, ...]


def maintain(
    lake: Lake,
    *,
    keeping: Keeping,
    now: datetime,
    tell: Callable[[str], None],
) -> Maintained:
    """Maintain a lake once. `now` is the time of the storage's clock.

    `tell` gets a line for each step. The caller records the floor: capture then trims the log.
    What fails at one table is a problem of the result. Raises: DeltaError, OSError, MergeError.
    """
    problems: list[str] = []
    tell("dropping old cuts")
    cuts, dropped = read_cuts(lake), 0
    leased = None
    with _noting(problems, str(lake.root / LEASES)):
        leased = list_leased(lake, now=now)
    if leased is not None:
        with _noting(problems, str(lake.cuts)):
            bounds = {one.bound for one in leased}
            cuts, dropped = thin_cuts(lake, now=now, keeping=keeping, leased=bounds)
    named = list_named_versions(lake, cuts, now=now, keeping=keeping)
    for name, version in chain.from_iterable(one.versions for one in leased or ()):
        named[name].add(version)
    targets, epochs = _list_targets(lake, named), lake.read_epochs()
    for target in (one for one in targets if one.kind is TargetKind.APPEND):
        with _noting(problems, str(target)):
            if count := remove_old_entries(lake, target, epochs, now=now):
                tell(f"removed {count} files of {target}: their entries are too old")
    # Compaction needs space, so files go first. They also go if a full disk kept the cuts.
    tell("removing files that nobody reads any more")
    before_us = _count_us(now - keeping.grace)
    # Without the leases, nobody knows which versions readers need.
    cleaned = Cleaned()
    if leased is not None:
        cleaned = _clean_targets(lake, targets, named, before_us, problems)
    commits_before_us = _count_us(now - keeping.commit_life)
    for ledger in lake.ledgers:
        # Each round adds a cut. No other ledger grows as fast.
        early = EarlyCommits(commits_before_us, Tombstones(ledger)) if ledger == lake.cuts else None
        cleaned += _clean_ledger(ledger, before_us, problems, early=early)
    tell(f"compacting {len(targets)} tables and the ledgers")
    compacted = _compact(lake, targets, epochs, problems)
    with _noting(problems, str(lake.dropped_cuts)):
        forget_dropped(lake, now=now, keeping=keeping)
    aged = find_newest_before(lake, cuts, now - keeping.retention)
    floor, queued = _find_floor(lake, cuts, aged)
    return Maintained(
        tuple(cuts),
        dropped,
        floor,
        tuple(queued),
        tuple(compacted),
        cleaned,
        _measure_log(lake),
        tuple(problems),
    )


def _find_floor(lake: Lake, cuts: list[Cut], aged: Bound | None) -> tuple[Floor | None, list[str]]:
    """Find the floor of the log; queue the halted tables that lose changes, and return both.

    `aged` is the newest cut that is older than the retention. The tables are queued before the
    floor is recorded: a crash in between costs a needless backfill.
    """
    starts = find_unmerged_starts(lake, cuts[-1]) if cuts else []
    floor = find_floor(cuts, aged=aged, started=starts)
    return floor, [] if floor is None else queue_halted(lake, cuts[-1], floor.bound)


def _compact(
    lake: Lake, targets: list[Target], epochs: list[Epoch], problems: list[str]
) -> list[str]:
    compacted = []
    for target in targets:
        with _noting(problems, str(target)):
            if compact_target(lake, target, epochs):
                compacted.append(str(target))
    for ledger in lake.ledgers:
        if ledger not in {lake.cuts, lake.dropped_cuts}:  # `cut_ledgers` writes these whole.
            with _noting(problems, str(ledger)):
                compact_ledger(ledger)
    return compacted


def _clean_targets(
    lake: Lake,
    targets: list[Target],
    named: dict[str, set[int]],
    before_us: int,
    problems: list[str],
) -> Cleaned:
    total = Cleaned()
    for target in targets:
        with _noting(problems, str(target)):
            cleaned = clean_table(
                lake.locate_target(target),
                named=named.get(str(target), set()),
                before_us=before_us,
                lock=partial(_locking, lake, target),
            )
            total += cleaned
            problems += [] if cleaned.problem is None else [cleaned.problem]
    return total


def _count_us(time: datetime) -> int:
    """Microseconds since 1970."""
    return int((time - UNIX_START).total_seconds() * 1e6)


def _clean_ledger(
    ledger: LakePlace, before_us: int, problems: list[str], *, early: EarlyCommits | None
) -> Cleaned:
    """Remove old files of a ledger. Its writers commit a file right after they wrote it."""
    if not (ledger / DELTA_LOG).is_folder():
        return Cleaned()
    cleaned = clean_table(ledger, named=(), before_us=before_us, early=early)
    problems += [] if cleaned.problem is None else [cleaned.problem]
    return cleaned


@contextmanager
def _locking(lake: Lake, target: Target) -> Iterator[None]:
    """Hold a target's lock, without what dead merges left in its folder."""
    with lake.lock_table(str(target), jvm=None):
        clear_attempts(lake.locate_target(target), lake.read_epochs())
        yield


@contextmanager
def _noting(problems: list[str], table: str) -> Iterator[None]:
    """Note the error of one table, and go on with the others."""
    try:
        yield
    except WalgateError as error:
        problems.append(f"{table}: {error.message}")
    except (DeltaError, OSError, pa.ArrowException) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        problems.append(f"{table}: {reason}")


def _list_targets(lake: Lake, named: dict[str, set[int]]) -> list[Target]:
    """List the targets that have a folder: those of cuts, and those that no cut names."""
    announced = {relation.table for relation in lake.read_relations().values()}
    known = {Target(table, kind) for table in announced for kind in TargetKind}
    targets = known | set(map(Target.parse, named))
    return sorted(one for one in targets if (lake.locate_target(one) / DELTA_LOG).is_folder())


def _measure_log(lake: Lake) -> Space:
    """The files that the log has."""
    total = Space()
    for place in (lake.changes, lake.relations, lake.epochs):
        table = open_table(place)
        if table is not None:
            sizes = pa.table(table.get_add_actions())["size_bytes"].to_pylist()
            total += Space(len(sizes), sum(sizes))
    return total
