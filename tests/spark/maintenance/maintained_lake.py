"""A lake that is maintained: by `maintain`, and by capture's upkeep of its log."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

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

NOTHING = timedelta(0)
# Everything that may go goes at once: only the newest cut is kept.
AT_ONCE = Keeping(NOTHING, NOTHING, NOTHING, NOTHING)
SUBSCRIPTION = Subscription.of(SourceSettings(dsn="dbname=none"))


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
        self, confirmed: int | None = None, *, settled_s: float = 0, grace_s: float = 0
    ) -> int:
        """Tend the log until nothing is left to do; give the number of steps.

        `confirmed` is what the slot has confirmed; by default all that is staged.
        """
        log = Log(self.lake.root, spool=self.spool, subscription=SUBSCRIPTION)
        epoch = log.read_epoch()
        assert epoch is not None
        staged = log.read_staged(epoch)
        ledger = MaintenanceLedger(self.lake.root)
        upkeep = LogUpkeep(log, ledger, grace_s, settled_s=settled_s)
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
