"""A lake that is maintained: by `maintain`, and by capture's upkeep of its log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from cdc_core.lake_storage.cleaning import COMMIT_LIFE_S
from cdc_core.layout import CHANGES_SCHEMA
from cdc_core.settings import SourceSettings
from cdc_core.staging.epochs import Epoch
from cdc_core.staging.log import Log
from cdc_core.staging.log_files import LogPoint
from cdc_core.staging.maintenance import MaintenanceLedger, MaintenanceReport
from cdc_core.staging.subscriptions import Subscription
from cdc_core.staging.upkeep import LogUpkeep
from cdc_core.vocabulary import Lsn
from spark_jobs.lake.lake import Lake
from spark_jobs.maintenance.log_floor import Floor
from spark_jobs.maintenance.maintenance import Maintained, maintain
from spark_jobs.maintenance.thinning import Keeping
from tests.spark.log_writer import LogWriter
from tests.spark.relations import Entry

NOTHING = timedelta(0)
# Everything that may go goes at once: only the newest cut is kept.
AT_ONCE = Keeping(NOTHING, NOTHING, NOTHING, NOTHING)
# Beside a pipeline. A round of small tables takes a second or two. Its files must stay for longer.
SHORT = Keeping(
    retention=timedelta(seconds=4),
    grace=timedelta(seconds=20),
    every_cut=timedelta(seconds=2),
    often=timedelta(seconds=3),
    often_interval=timedelta(seconds=1),
    seldom_interval=timedelta(seconds=1),
)
SUBSCRIPTION = Subscription.of(SourceSettings(dsn="dbname=none"))


class CaptureLog:
    """A log that a session of capture appends to and tends."""

    def __init__(
        self,
        writer: LogWriter,
        spool: Path,
        *,
        grace_s: float,
        settled_s: float,
        commit_life_s: float = COMMIT_LIFE_S,
    ) -> None:
        root = writer.lake.root
        self._writer = writer
        self._log = Log(root, spool=spool, subscription=SUBSCRIPTION)
        epoch = self._log.read_epoch()
        assert epoch is not None
        self._epoch = epoch
        self._log.read_staged(epoch)
        ledger = MaintenanceLedger(root)
        self._upkeep = LogUpkeep(
            self._log, ledger, grace_s, settled_s=settled_s, commit_life_s=commit_life_s
        )

    def stage(self, entries: Sequence[Entry]) -> tuple[int, float]:
        """Stage one transaction; give its end LSN, and the seconds from its rows to its commit."""
        end_lsn = self._writer.add(entries)
        rows = sorted(self._writer.pending, key=lambda row: row["table"])
        self._writer.pending.clear()
        changes = pa.Table.from_pylist(rows, CHANGES_SCHEMA)
        began = time.perf_counter()
        part = self._log.write_part(changes)
        self._log.append([part], epoch=self._epoch, end_lsn=Lsn(end_lsn))
        return end_lsn, time.perf_counter() - began

    def tend(self) -> bool:
        """Do a step of the upkeep; whether there may be more to do."""
        return self._upkeep.do_step(self._epoch.epoch, Lsn(self._writer.lsn))


@dataclass
class Keeper:
    """Maintains a lake, and tends its log as a session of capture does between its batches."""

    lake: Lake
    spool: Path
    floors: list[Floor] = field(default_factory=list)

    def maintain(self, keeping: Keeping = AT_ONCE, *, later: timedelta = NOTHING) -> Maintained:
        """Maintain the lake once, some time from now."""
        now = datetime.now(UTC) + later
        done = maintain(self.lake, keeping=keeping, now=now, tell=lambda _: None)
        if done.floor is not None:
            self.record(done.floor)
        return done

    def record(self, floor: Floor) -> None:
        """Record a floor in the ledger, as the job does."""
        self.floors.append(floor)
        point = LogPoint(floor.bound.epoch, floor.bound.lsn)
        now = datetime.now(UTC)
        MaintenanceLedger(self.lake.root).record(
            MaintenanceReport(
                now, 0, 1, 0, None, None, point, floor.holder, 0, 0, 0, 0, 0, 0, 0, ()
            )
        )

    def tend(
        self,
        confirmed: int | None = None,
        *,
        settled_s: float = 0,
        grace_s: float = 0,
        commit_life_s: float = 0,
    ) -> int:
        """Tend the log until nothing is left to do; give the number of steps.

        `confirmed` is what the slot has confirmed; by default all that is staged.
        """
        log = Log(self.lake.root, spool=self.spool, subscription=SUBSCRIPTION)
        epoch = log.read_epoch()
        assert epoch is not None
        staged = log.read_staged(epoch)
        ledger = MaintenanceLedger(self.lake.root)
        upkeep = LogUpkeep(log, ledger, grace_s, settled_s=settled_s, commit_life_s=commit_life_s)
        steps = 0
        while upkeep.do_step(epoch.epoch, staged if confirmed is None else Lsn(confirmed)):
            steps += 1
        assert log.read_staged(epoch) == staged
        return steps

    def read_transactions(self, epoch: Epoch | None = None, since: int = 0) -> list[Lsn]:
        """The commit LSNs that a restart of capture would expect from `since` on."""
        log = Log(self.lake.root, spool=self.spool, subscription=SUBSCRIPTION)
        epoch = epoch or log.read_epoch()
        assert epoch is not None
        log.read_staged(epoch)
        first = max(Lsn(since), log.read_trimmed(epoch))
        return [one.commit_lsn for one in log.read_transactions(epoch, since=first)]
