"""How long one round takes to merge some changes into tables of several sizes.

Each case has tables of its own. The clock runs from the call of the merge to its cut; the first
round is a warm-up. CPU is that of the driver, of its JVM and of the Python workers of Spark.
"""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Log
from cdc_core.staging.subscriptions import Subscription
from cdc_core.vocabulary import Lsn, Relation
from spark_jobs.lake.lake import open_table
from spark_jobs.target.limits import DEFAULT_LIMITS, MergeLimits
from tests.spark.log_writer import EPOCH_START
from tests.spark.relations import make_relation
from tests.spark.small_lake import MERGE_ONLY, SmallLake

_COLUMNS = "k int8, a text, b int4, c text, m timestamptz"
_FILL_ROWS = 500_000
# Most applications change mostly their newest rows. This many keys count as newest.
_NEWEST = 10_000


@dataclass(frozen=True, slots=True)
class MergeCase:
    """Tables by their numbers of rows, and how many rows of each a round updates.

    `is_newest`: the rows are among the newest keys of the table; otherwise anywhere in it.
    """

    name: str
    sizes: tuple[int, ...]
    changes: tuple[int, ...]
    is_newest: bool = True


CASES = (
    MergeCase("1 row anywhere in a table of 140,000", (140_000,), (1,), is_newest=False),
    MergeCase("4,000 of the newest rows of a table of 545,000", (545_000,), (4_000,)),
    MergeCase(
        "5,000 of the newest rows of seven tables of 300 to 545,000",
        (545_000, 140_000, 140_000, 60_000, 20_000, 2_000, 300),
        (2_500, 750, 750, 500, 250, 150, 100),
    ),
    MergeCase(
        "10,000 scattered rows of a table of 10,000,000", (10_000_000,), (10_000,), is_newest=False
    ),
)
# In this case, all files have changed rows. So it is timed with MERGE alone, too.
_ALSO_BY_MERGE = CASES[-1].name


def run_merges(
    session: SparkSession, folder: Path, *, rounds: int, most_rows: int
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time each case; yield its name and figures. No table gets more than `most_rows` rows."""
    for number, case in enumerate(CASES):
        place = folder / f"merges-{number}"
        merges = _Merges(session, place, case, most_rows=most_rows)
        limits = {case.name: DEFAULT_LIMITS}
        if case.name == _ALSO_BY_MERGE:
            limits[f"{case.name}, by MERGE alone"] = MERGE_ONLY
        # By turns, so that a noisy minute spoils both.
        timed: dict[str, list[tuple[float, float]]] = {name: [] for name in limits}
        for _ in range(rounds + 1):
            for name, chosen in limits.items():
                timed[name].append(merges.time_round(chosen))
        for name, taken in timed.items():
            yield name, _sum_up(taken[1:] or taken)
        shutil.rmtree(place)


def _sum_up(taken: Sequence[tuple[float, float]]) -> dict[str, Any]:
    seconds, cpu_s = zip(*taken, strict=True)
    spread = (min(seconds), statistics.median(seconds), max(seconds))
    return {
        "seconds": [round(one, 2) for one in spread],
        "cpu_s": round(statistics.median(cpu_s), 2),
    }


class _Merges:
    """The tables of a case, and the log that the rounds merge."""

    def __init__(
        self, session: SparkSession, folder: Path, case: MergeCase, *, most_rows: int
    ) -> None:
        """Make the tables, and merge their first rows."""
        folder.mkdir(parents=True)
        self._case = case
        self._random = random.Random(case.name)
        self._small = SmallLake(session, folder)
        lake = self._small.lake
        subscription = Subscription(("walgate",), "any")
        self._log = Log(lake.root, spool=folder / "spool", subscription=subscription)
        epoch = self._log.read_epoch()
        assert epoch is not None
        self._epoch: Epoch = epoch
        sizes = [min(size, most_rows) for size in case.sizes]
        self._tables = {
            make_relation(f"t{number}", _COLUMNS, oid=20_000 + number): size
            for number, size in enumerate(sizes)
        }
        for relation, size in self._tables.items():
            for low in range(0, size, _FILL_ROWS):
                keys = range(low, min(size, low + _FILL_ROWS))
                self._stage("read", {relation: keys})
                self._small.merge()

    def time_round(self, limits: MergeLimits) -> tuple[float, float]:
        """Update some rows and merge them; the seconds of the clock and of the CPU."""
        chosen = {
            relation: self._choose_keys(size, count)
            for (relation, size), count in zip(
                self._tables.items(), self._case.changes, strict=True
            )
        }
        self._stage("update", chosen)
        cpu_s, began = _read_cpu(), time.monotonic()
        self._small.merge(limits=limits)
        seconds = time.monotonic() - began
        cpu_s = _read_cpu() - cpu_s
        for relation, keys in chosen.items():
            self._require_rows(relation, keys)
        return seconds, cpu_s

    def _choose_keys(self, size: int, count: int) -> list[int]:
        low = max(0, size - _NEWEST) if self._case.is_newest else 0
        return self._random.sample(range(low, size), min(count, size - low))

    def _stage(self, operation: str, keys: Mapping[Relation, Sequence[int]]) -> None:
        """Stage one transaction, as capture would."""
        writer = self._small.log
        commit_lsn, end_lsn = writer.lsn + 8, writer.lsn + 16
        writer.lsn = end_lsn
        pieces: list[pa.Table] = []
        seq = 0
        for relation, own in keys.items():
            count = len(own)
            version = writer.announce(relation)
            repeated = {
                "epoch": writer.epoch,
                "commit_lsn": commit_lsn,
                "end_lsn": end_lsn,
                "xid": end_lsn,
                "committed_at": EPOCH_START,
                "log_time": EPOCH_START,
                "table": str(relation.table),
                "relation_version": version,
                "op": operation,
            }
            texts = [_write_row(key, end_lsn) for key in own]
            columns: dict[str, list[Any]] = {n: [value] * count for n, value in repeated.items()}
            columns |= {"seq": [*range(seq, seq + count)], "values": texts}
            pieces.append(
                pa.Table.from_arrays(
                    [
                        pa.array(columns.get(field.name, [None] * count), field.type)
                        for field in CHANGES_SCHEMA
                    ],
                    schema=CHANGES_SCHEMA,
                )
            )
            seq += count
        part = self._log.write_part(pa.concat_tables(pieces))
        self._log.append([part], epoch=self._epoch, end_lsn=Lsn(end_lsn))

    def _require_rows(self, relation: Relation, keys: Sequence[int]) -> None:
        """Fail unless the table has each row once, with the values that were staged last."""
        table = open_table(self._small.lake.locate(relation.table))
        assert table is not None
        rows = table.to_pyarrow_dataset()
        assert rows.count_rows() == self._tables[relation]
        names = [column.name for column in relation.columns][:4]
        found = rows.to_table(columns=names, filter=ds.field("k").isin(sorted(keys))).to_pylist()
        expected = [_write_row(key, self._small.log.lsn)[:4] for key in keys]
        assert sorted([str(v) for v in row.values()] for row in found) == sorted(expected)


def _write_row(key: int, lsn: int) -> list[str]:
    """The texts of a row; its length depends on the key, and one number on the LSN."""
    return [str(key), f"name {key * 7919 % 1_000_003}", str(lsn % 1000), "x" * (10 + key % 30),
            "2026-01-01 00:00:00+00"]  # fmt: skip


def _read_cpu() -> float:
    """The CPU seconds of this process and of all that it started."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total
