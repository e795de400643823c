"""Range summaries: what a log range holds of each table, without its rows.

Arrow makes them from whole files. Spark takes ten times as long for the same entries, and compiles
again for each range. Spark makes them if the files do not hold the entries as they are, or if the
caller has only a query of the entries.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cdc_core.lake_storage.arrow_files import open_input
from cdc_core.lake_storage.place import LakePlace
from cdc_core.vocabulary import UNIX_START, Lsn, Position
from spark_jobs.delta.decoded_size import bound_size
from spark_jobs.lake.lake import Bound
from spark_jobs.log.entries import is_inside, naming
from spark_jobs.log.reading import POSITION

_OF = ("table", "relation_version", "op")
_COLUMNS = [*_OF, *POSITION, "end_lsn", "committed_at", "unchanged", "old_values"]
# These columns have few distinct values, so Arrow reads them as dictionaries.
_CODED = ["table", "op"]
# Bytes in memory. Arrow reads row groups of one file together up to this size.
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RangeSummary:
    """What a log range holds of one table under one relation version, for one operation.

    `first_committed_at` and `committed_at` are the least and the greatest commit time. `unchanged`
    are the indexes of the columns that some change did not send.
    """

    table: str | None
    relation_version: int | None
    operation: str
    entries: int
    first: Position
    last: Position
    first_committed_at: datetime
    committed_at: datetime
    unchanged: frozenset[int]
    has_old_values: bool


def summarize(log: DataFrame) -> list[RangeSummary]:
    """Summarize a query of entries, by table, relation version and operation."""
    position = F.struct(*POSITION)
    rows = (
        log.groupBy("table", "relation_version", "op")
        .agg(
            F.count(F.lit(1)).alias("entries"),
            F.min(position).alias("first"),
            F.max(position).alias("last"),
            # As a number: Spark would return a time in this process's zone, and not name the zone.
            F.min(F.unix_micros("committed_at")).alias("first_committed_at"),
            F.max(F.unix_micros("committed_at")).alias("committed_at"),
            F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("unchanged"),
            F.max(F.col("old_values").isNotNull()).alias("has_old_values"),
        )
        .collect()
    )
    return [
        RangeSummary(
            row["table"],
            row["relation_version"],
            row["op"],
            row["entries"],
            Position(row["first"][0], Lsn(row["first"][1]), row["first"][2]),
            Position(row["last"][0], Lsn(row["last"][1]), row["last"][2]),
            UNIX_START + timedelta(microseconds=row["first_committed_at"]),
            UNIX_START + timedelta(microseconds=row["committed_at"]),
            frozenset(row["unchanged"]),
            row["has_old_values"],
        )
        for row in rows
    ]


def summarize_files(
    files: Iterable[LakePlace], low: Bound | None, high: Bound
) -> list[RangeSummary]:
    """Summarize the entries of `(low, high]` in some files of the log.

    Raises: LakeError if a file cannot be read.
    """
    found: dict[tuple[object, ...], RangeSummary] = {}
    for file in files:
        with naming(file):
            for entries in _read_entries(file):
                for summary in summarize_entries(entries.filter(is_inside(entries, low, high))):
                    of = (summary.table, summary.relation_version, summary.operation)
                    known = found.get(of)
                    found[of] = summary if known is None else _join(known, summary)
    return list(found.values())


def _read_entries(file: LakePlace) -> Iterator[pa.Table]:
    with open_input(file) as source, pq.ParquetFile(source, read_dictionary=_CODED) as log:
        groups: list[int] = []
        size = 0
        for index in range(log.num_row_groups):
            own = bound_size(log.metadata.row_group(index), _COLUMNS, coded=_CODED)
            if groups and size + own > _MAX_BYTES:
                yield log.read_row_groups(groups, columns=_COLUMNS, use_threads=False)
                groups, size = [], 0
            groups.append(index)
            size += own
        yield log.read_row_groups(groups, columns=_COLUMNS, use_threads=False)


def summarize_entries(entries: pa.Table) -> Iterator[RangeSummary]:
    """Summarize entries that are in memory."""
    # This gives each column one dictionary for all row groups.
    entries = entries.combine_chunks()
    entries = entries.append_column("at_us", entries["committed_at"].cast(pa.int64()))
    entries = entries.append_column("is_old", entries["old_values"].is_valid())
    of_one = entries.group_by([*_OF, "epoch", "commit_lsn"], use_threads=False).aggregate(
        [
            ("seq", "min"),
            ("seq", "max"),
            ("at_us", "min"),
            ("at_us", "max"),
            ("is_old", "any"),
            ([], "count_all"),
        ]
    )
    # One row for each transaction. Sorted, so that first and last are the least and the greatest.
    of_one = of_one.sort_by([("epoch", "ascending"), ("commit_lsn", "ascending")])
    ends = [
        (name, end) for name in (*POSITION[:2], "seq_min", "seq_max") for end in ("first", "last")
    ]
    facts = of_one.group_by([*_OF], use_threads=False).aggregate(
        [
            *ends,
            ("at_us_min", "min"),
            ("at_us_max", "max"),
            ("is_old_any", "any"),
            ("count_all", "sum"),
        ]
    )
    unchanged = _list_unchanged(entries)
    for row in facts.to_pylist():
        yield RangeSummary(
            row["table"],
            row["relation_version"],
            row["op"],
            row["count_all_sum"],
            Position(row["epoch_first"], Lsn(row["commit_lsn_first"]), row["seq_min_first"]),
            Position(row["epoch_last"], Lsn(row["commit_lsn_last"]), row["seq_max_last"]),
            UNIX_START + timedelta(microseconds=row["at_us_min_min"]),
            UNIX_START + timedelta(microseconds=row["at_us_max_max"]),
            unchanged.get(tuple(row[name] for name in _OF), frozenset()),
            row["is_old_any_any"],
        )


def _list_unchanged(entries: pa.Table) -> dict[tuple[object, ...], frozenset[int]]:
    """The columns that some change did not send, by table, relation version and operation."""
    lists = entries["unchanged"].combine_chunks()
    told = entries.select(_OF).take(pc.list_parent_indices(lists))
    told = told.append_column("unchanged", pc.list_flatten(lists))
    found: defaultdict[tuple[object, ...], set[int]] = defaultdict(set)
    for row in told.group_by(told.column_names).aggregate([]).to_pylist():
        found[tuple(row[name] for name in _OF)].add(row["unchanged"])
    return {of: frozenset(indexes) for of, indexes in found.items()}


def _join(one: RangeSummary, other: RangeSummary) -> RangeSummary:
    return replace(
        one,
        entries=one.entries + other.entries,
        first=min(one.first, other.first),
        last=max(one.last, other.last),
        first_committed_at=min(one.first_committed_at, other.first_committed_at),
        committed_at=max(one.committed_at, other.committed_at),
        unchanged=one.unchanged | other.unchanged,
        has_old_values=one.has_old_values or other.has_old_values,
    )
