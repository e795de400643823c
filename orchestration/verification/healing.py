"""Verifies tables, heals those that differ, and verifies the healed tables again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from cdc_core.backfill.results import BackfillProgress
from cdc_core.errors import WalgateError
from cdc_core.settings import Settings
from cdc_core.spooled import Key
from cdc_core.staging.verifications import Verified
from cdc_core.vocabulary import Lsn, TableName
from orchestration.backfill.backfill import reread_keys, run_backfills
from orchestration.capture.own_capture import ensuring_capture
from orchestration.verification.table_comparison import Keys
from orchestration.verification.verify import verify_tables
from orchestration.verification.waiting import Tell
from spark_jobs.session.executors import await_executor, requiring_executors

# For more keys than this, a whole backfill is cheaper than reading each key.
_MAX_KEYS = 10_000


@dataclass(frozen=True, slots=True)
class VerificationResult:
    """What the last comparison of each table found, and the LSN of the newest comparison.

    A healed table keeps the ranges that differed before, if none differ now. `keys` are those that
    differed in the first comparison, if they are known.
    """

    lsn: Lsn
    tables: tuple[Verified, ...]
    keys: Mapping[TableName, Keys]


def verify_and_heal(
    settings: Settings,
    session: SparkSession,
    named: Sequence[TableName] | None,
    *,
    is_healing: bool,
    stop: threading.Event,
    tell: Tell,
    is_rotating: bool = False,
) -> VerificationResult:
    """Compare tables with the source; if `is_healing`, heal those that differ and compare again.

    Uses the running capture, or one of its own. Raises: WalgateError.
    """
    with ensuring_capture(settings, stop), requiring_executors(session):
        # A snapshot holds back the source, so it must not wait for executors.
        await_executor(session)
        first = verify_tables(
            settings, session, named, stop=stop, tell=tell, is_rotating=is_rotating
        )
        different = {found.table: found for found in first.different}
        if not is_healing or not different:
            return VerificationResult(first.bound.lsn, first.tables, first.keys)

        healed = _heal(settings, [*different], first.keys, stop=stop, tell=tell)
        if not healed:
            return VerificationResult(first.bound.lsn, first.tables, first.keys)
        second = verify_tables(
            settings,
            session,
            healed,
            stop=stop,
            tell=tell,
            parts={table: found.part for table, found in different.items()},
            healed=frozenset(healed),
        )
    again = {
        found.table: replace(found, ranges=found.ranges or different[found.table].ranges)
        for found in second.tables
    }
    tables = tuple(again.get(found.table, found) for found in first.tables)
    return VerificationResult(second.bound.lsn, tables, first.keys)


def _heal(
    settings: Settings,
    tables: Sequence[TableName],
    different: Mapping[TableName, Keys],
    *,
    stop: threading.Event,
    tell: Tell,
) -> list[TableName]:
    """Read the keys that differ again, or the whole table; return the tables that were done.

    A table that cannot be read now stays different, and the others are still healed.
    """

    def tell_progress(table: TableName, progress: BackfillProgress) -> None:
        tell(f"{table}: healing, {progress.rows:,} rows read")

    done = []
    for table in tables:
        keys = _choose_keys(different.get(table))
        tell(f"{table}: healing, {_describe(keys)}")
        try:
            if keys is not None:
                is_done = reread_keys(settings, table, keys, stop=stop)
            else:
                is_done = table in run_backfills(
                    settings,
                    [table],
                    chunk_rows=settings.backfill.chunk_rows,
                    parallel=settings.backfill.parallel,
                    stop=stop,
                    on_progress=tell_progress,
                    is_anew=True,
                )
        except WalgateError as error:
            tell(f"{table}: not healed: {error}")
            continue
        if is_done:
            done.append(table)
    return done


def _choose_keys(keys: Keys | None) -> list[Key] | None:
    """The keys to read again; None if they are unknown or too many, or if one is incomplete."""
    whole = [tuple(text for text in key if text is not None) for key in keys or ()]
    is_known = keys is not None and all(key and None not in key for key in keys)
    return sorted(whole) if is_known and len(whole) <= _MAX_KEYS else None


def _describe(keys: Sequence[Key] | None) -> str:
    if keys is None:
        return "the whole table"
    return "1 key" if len(keys) == 1 else f"{len(keys):,} keys"
