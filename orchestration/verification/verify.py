"""Verification: compares tables of the lake with the source, both as they were at one LSN.

It opens a snapshot first and writes a mark. Then it waits until the log has all that the snapshot
holds, and reads each table at exactly the snapshot's LSN. Both sides sum up ranges at the same
time. If ranges differ, both sum up smaller ranges, and at last list the keys of those left.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from cdc_core.backfill.log_history import find_log_history
from cdc_core.capture.concealing import read_key
from cdc_core.comparing import (
    Compared,
    Difference,
    Ordering,
    OrdinalRange,
    RangeSums,
    add_up,
    choose_width,
    find_differences,
)
from cdc_core.errors import LakeError, SourceError
from cdc_core.protocol.concealment import mark_key
from cdc_core.settings import Settings, TableSettings
from cdc_core.source import checksums
from cdc_core.source.connection import LOCK_S
from cdc_core.source.first_reading import find_costly_readings
from cdc_core.source.marks import emit_mark
from cdc_core.source.primary import open_primary, require_history
from cdc_core.source.published_tables import PublishedTable, read_published_tables
from cdc_core.source.snapshots import SourceSnapshot, open_snapshot
from cdc_core.staging.relations import RelationStore
from cdc_core.staging.verifications import (
    DIFFERENT,
    EQUAL,
    SKIPPED,
    TableVerification,
    VerificationLedger,
    Verified,
)
from cdc_core.table_patterns import choose_rule
from cdc_core.table_states import TableState
from cdc_core.targets import Target, TargetKind
from cdc_core.vocabulary import TableName
from orchestration.verification.table_comparison import Keys, TableComparison, estimate_rows
from orchestration.verification.waiting import Tell, await_staged, read_first, require_going
from orchestration.verification.written_rules import find_changed_rules
from spark_jobs.history.versions import select_open
from spark_jobs.lake.completeness import Completeness, read_completeness
from spark_jobs.lake.lake import Bound, Lake
from spark_jobs.lake.leases import Lease, holding_lease
from spark_jobs.query.as_of import keep_newest, list_tables, table_at
from spark_jobs.query.versions_at import versions_at
from spark_jobs.schema.evolution import TableSchema
from spark_jobs.verification import checksums as verify

# Average rows of a range before it is narrowed.
_RANGE_ROWS = 5_000
# The longest wait for the transactions that a snapshot waits for.
_SNAPSHOT_S = 60.0


@dataclass(frozen=True, slots=True)
class Verification:
    """What was found of each table at one LSN, and the keys that differ, if they are known."""

    bound: Bound
    tables: tuple[Verified, ...]
    keys: dict[TableName, Keys]

    @property
    def different(self) -> list[Verified]:
        """The tables that are not equal."""
        return [found for found in self.tables if found.result == DIFFERENT]


def verify_tables(
    settings: Settings,
    session: SparkSession,
    named: Sequence[TableName] | None,
    *,
    stop: threading.Event,
    tell: Tell,
    parts: dict[TableName, OrdinalRange] | None = None,
    is_rotating: bool = False,
    healed: frozenset[TableName] = frozenset(),
) -> Verification:
    """Compare the named tables, or all that are published or in the lake, at one LSN.

    Capture must run. If `is_rotating`, a table larger than `[verify] rows_per_run` is compared in
    the part that follows the last one. `parts` sets the parts of tables. `healed` has the tables
    that were just read again. The results are recorded in the ledger.
    Raises: WalgateError.
    """
    lake = Lake.of(settings)
    ledger = VerificationLedger(settings.lake.root)
    standings = ledger.read_table_verifications() if is_rotating else {}
    source = settings.source
    find_history = find_log_history(settings.lake.root)
    opened = partial(open_primary, source, find_history, application_name="walgate verify")
    with closing(opened(lock_s=LOCK_S)) as connection:
        major = connection.info.server_version // 10_000
        sources = read_published_tables(connection, source.publication, major=major)
        costly = find_costly_readings(connection, sources)
    published = [one.table for one in sources]
    tables = list(named) if named is not None else sorted({*published, *list_tables(lake)})
    for table in tables:
        if costly is not None and str(table) in costly.sizes:
            read_first(source, table, find_history, stop=stop, tell=tell)
    tell("opening a snapshot of the source")
    with open_snapshot(
        source, tables, find_history=find_history, patience_s=_SNAPSHOT_S, stop=stop
    ) as snapshot:
        with closing(opened()) as connection:
            emit_mark(connection, json.dumps({"by": "walgate verify"}), on=snapshot.history)
        bound = await_staged(lake, snapshot.lsn, stop=stop, tell=tell)
        # Capture may have followed a promotion since: then the snapshot is of the old server.
        require_history(snapshot.connection, snapshot.history, find_history())
        with ThreadPoolExecutor(1, "walgate-checksums") as pool:
            found = []
            with holding_lease(lake, bound) as lease:
                # The first table is compared at once. Others may wait longer than the grace.
                for table in tables[1:]:
                    keep_newest(lake, table, bound, lease)
                sight = _ComparisonContext(
                    settings=settings,
                    session=session,
                    lake=lake,
                    snapshot=snapshot,
                    bound=bound,
                    lease=lease,
                    pool=pool,
                    backfilled=read_completeness(lake),
                    standings=standings,
                    parts=parts or {},
                    is_rotating=is_rotating,
                )
                for table in tables:
                    require_going(stop)
                    tell(f"{table}: comparing at {bound.lsn}")
                    found.append(sight.verify_table(table))
    verified = tuple(replace(one, healed=one.table in healed) for one, _ in found)
    ledger.record(verified)
    keys = {one.table: keys for one, keys in found if keys is not None}
    return Verification(bound, verified, keys)


class _SkippedTable(Exception):
    """A table that cannot be compared, and why."""


@dataclass(frozen=True, slots=True)
class _ComparisonContext:
    """The snapshot of the source and the lake at the same LSN, with how to compare tables."""

    settings: Settings
    session: SparkSession
    lake: Lake
    snapshot: SourceSnapshot
    bound: Bound
    lease: Lease
    pool: ThreadPoolExecutor
    backfilled: Completeness
    standings: dict[str, TableVerification]
    parts: dict[TableName, OrdinalRange]
    is_rotating: bool

    def verify_table(self, table: TableName) -> tuple[Verified, Keys | None]:
        """Compare one table; return what was found, and the keys that differ if they are known."""
        began = time.monotonic()
        empty = Verified(table, self.bound.epoch, self.bound.lsn, SKIPPED)
        try:
            found, keys = self._compare(table, empty)
        except _SkippedTable as skip:
            found, keys = replace(empty, reason=str(skip)), None
        except (LakeError, SourceError) as error:
            if self.snapshot.connection.closed:
                raise
            found, keys = replace(empty, reason=f"{error.message}; fix: {error.fix}"), None
        return replace(found, seconds=round(time.monotonic() - began, 3)), keys

    def _compare(self, table: TableName, empty: Verified) -> tuple[Verified, Keys | None]:
        published = self._find_published(table)
        lack = self.backfilled.find_incomplete(str(table), self.bound)
        if lack is not None and lack.state is TableState.BACKFILLING:
            raise _SkippedTable(f"its backfill is not done: {lack.reason}")
        reading = table_at(self.session, self.lake, table, self.bound, lease_of_newest=self.lease)
        if reading.halt is not None:
            raise _SkippedTable(
                f"halted at {reading.through.lsn}: {reading.halt.reason}; fix: {reading.halt.fix}"
            )
        schema = verify.find_schema(reading.rows)
        self._require_rule(published, schema)
        hashed = frozenset(self._find_rule(table).hash)
        if concealed := sorted(hashed.intersection(schema.key_names)):
            raise _SkippedTable(
                f"its key is hashed ({', '.join(concealed)}), and the source has no hashes"
            )
        compared = verify.choose_compared(schema, among=published.sent_columns, hashed=hashed)
        if lost := sorted({*schema.key_names} - {name for name, _ in compared.columns}):
            raise _SkippedTable(f"the source no longer sends its key ({', '.join(lost)})")
        comparison = TableComparison(
            self.snapshot, published, reading.rows, schema, compared, self.pool
        )
        part, share, width = self._choose_part(table, comparison)
        source, lake = comparison.sum_ranges(part, width)
        found = replace(
            empty,
            result=EQUAL,
            coverage=share,
            source=add_up(source),
            lake=add_up(lake),
            ordering=compared.ordering,
            part=part,
        )
        found = replace(found, reason=self._describe_left_out(published, schema, compared))
        differences = find_differences(source, lake, width, part)
        if not differences:
            found, comparison, differences = self._compare_history(
                table, found, comparison, (source, part, width)
            )
        if not differences:
            return found, None
        ranges, keys = comparison.narrow(differences)
        if lack is not None:
            also = f"{lack.reason}; fix: walgate backfill {table}"
            found = replace(found, reason=_join_reasons(found.reason, also))
        return replace(found, result=DIFFERENT, ranges=ranges), keys

    def _compare_history(
        self,
        table: TableName,
        found: Verified,
        comparison: TableComparison,
        compared: tuple[RangeSums, OrdinalRange, int],
    ) -> tuple[Verified, TableComparison, list[Difference]]:
        """Compare the open versions in a table's history, if it has one, with sums of the source.

        Closed versions are not in the source any more, so nothing can be compared with them.
        """
        target, (source, part, width) = Target(table, TargetKind.HISTORY), compared
        if target not in self.lake.choose_targets(table):
            return found, comparison, []
        reading = versions_at(self.session, self.lake, target, self.bound)
        if reading.halt is not None:
            said = f"{target} is not compared: it halted at {reading.through.lsn}"
            return replace(found, reason=_join_reasons(found.reason, said)), comparison, []
        schema = verify.find_schema(reading.rows)
        rows = select_open(reading.rows, schema)
        versions = replace(comparison, rows=rows, schema=schema)
        lake = versions.sum_lake(part, width)
        differences = find_differences(source, lake, width, part)
        if differences:
            said = f"the open versions in {target} differ"
            found = replace(found, lake=add_up(lake), reason=_join_reasons(found.reason, said))
        return found, versions, differences

    def _find_published(self, table: TableName) -> PublishedTable:
        if (refused := self.snapshot.refused.get(table)) is not None:
            raise _SkippedTable(f"{refused.message}; fix: {refused.fix}")
        found = self.snapshot.published.get(table)
        if found is None:
            raise _SkippedTable("it is not published: its rows stay as they are")
        if not found.key_columns:
            raise _SkippedTable(
                "it has no key, so Walgate cannot identify its rows; fix: add a primary key"
            )
        return found

    def _require_rule(self, published: PublishedTable, schema: TableSchema) -> None:
        """Refuse rows that were written under another exclude or hash rule. Raises: _SkippedTable.

        A hashed column is compared for NULL only, so the comparison would not notice.
        """
        relation = RelationStore(self.lake.root).latest(schema.oid)
        changed = find_changed_rules(
            schema,
            self._find_rule(published.table),
            mark_key(read_key(self.settings)),
            published,
            () if relation is None else relation.left_out,
        )
        if said := "; ".join(changed):
            raise _SkippedTable(f"{said}; fix: walgate backfill {published.table}")

    def _find_rule(self, table: TableName) -> TableSettings:
        rules = self.settings.tables
        chosen = choose_rule(rules, table, having=lambda rule: rule.conceals)
        return TableSettings() if chosen is None else chosen[1]

    def _choose_part(
        self, table: TableName, comparison: TableComparison
    ) -> tuple[OrdinalRange, float, int]:
        """The part to compare, its share of the table, and the width of the ranges."""
        connection, ordering = self.snapshot.connection, comparison.compared.ordering
        most = self.settings.verify.ranges
        rows = estimate_rows(self.lake, self.snapshot, table)
        span = checksums.find_span(connection, comparison.published, comparison.compared)
        part = self.parts.get(table)
        if part is None:
            part = OrdinalRange()
            per_run = self.settings.verify.rows_per_run
            if self.is_rotating and rows > per_run and span is not None:
                standing = self.standings.get(str(table))
                is_same = standing is not None and standing.ordering == ordering
                low = standing.next_ordinal if standing is not None and is_same else None
                part = OrdinalRange(low, self._find_end(comparison, low, span, per_run / rows))
        share = 1.0
        if part != OrdinalRange() and span is not None:
            low = span[0] if part.low is None else part.low
            high = span[1] + 1 if part.high is None else part.high
            share = min(1.0, max(0.0, (high - low) / (span[1] + 1 - span[0])))
            span = low, high - 1
        width = choose_width(span, round(rows * share), _RANGE_ROWS, most)
        return part, round(share, 4), width

    def _find_end(
        self, comparison: TableComparison, low: int | None, span: tuple[int, int], share: float
    ) -> int | None:
        """The ordinal at which a part that begins at `low` ends; None at the end of the table."""
        if comparison.compared.ordering is not Ordering.HASH:
            rows = self.settings.verify.rows_per_run
            connection = self.snapshot.connection
            return checksums.find_ordinal_after(
                connection, comparison.published, comparison.compared, low, rows
            )
        high = (span[0] if low is None else low) + max(1, round(share * (span[1] + 1 - span[0])))
        return None if high > span[1] else high

    def _describe_left_out(
        self, published: PublishedTable, schema: TableSchema, compared: Compared
    ) -> str | None:
        """Which columns were not compared, or not by their values."""
        rule = self._find_rule(published.table)
        known = {column.name for column in schema.columns}
        said = [
            f"{what}: {', '.join(sorted(names))}"
            for what, names in (
                ("hashed, compared for NULL only", known.intersection(rule.hash)),
                ("new, not in the lake yet", {*published.sent_columns} - known - {*rule.exclude}),
                ("no longer sent", known - {name for name, _ in compared.columns}),
            )
            if names
        ]
        return "; ".join(said) or None


def _join_reasons(*reasons: str | None) -> str | None:
    return "; ".join(filter(None, reasons)) or None
