"""Checks that a server is the one that the log was filled from, by what it reports."""

from __future__ import annotations

from collections.abc import Callable

from cdc_core.errors import RECOVER, Retry, SlotLost, WrongServer
from cdc_core.staging.epochs import Epoch
from cdc_core.vocabulary import Lsn


def require_begun(epoch: Epoch) -> None:
    """Check that the epoch has its slot. Raises: SlotLost if its recovery is not finished."""
    if epoch.is_pending:
        raise SlotLost(
            f"a recovery began epoch {epoch.epoch} at {epoch.started_at:%Y-%m-%d %H:%M:%S} UTC and"
            " did not finish",
            fix="run `walgate recover --yes` again: it resumes the recovery",
            retry=Retry.AFTER_FIX,
        )


def require_server(
    epoch: Epoch,
    *,
    staged: Lsn,
    slot: str,
    system_id: str,
    timeline: int,
    find_switch: Callable[[int], Lsn],
) -> None:
    """Check that the server and the slot are those that the log was filled from.

    `find_switch` returns the LSN where the server's history left a timeline.
    Raises: WrongServer, SlotLost.
    """
    fix = "point [source] at the server that was replicated, or " + RECOVER
    if system_id != epoch.system_id:
        raise WrongServer(
            f"the server's system identifier is {system_id}, staging was filled from"
            f" {epoch.system_id}",
            fix=fix,
            retry=Retry.AFTER_FIX,
        )
    if slot != epoch.slot:
        raise SlotLost(
            f"[source] slot is {slot}, staging was filled from {epoch.slot}",
            fix=f'set slot = "{epoch.slot}", or {RECOVER}',
            retry=Retry.AFTER_FIX,
        )
    if timeline < epoch.timeline:
        raise WrongServer(
            f"the server is on timeline {timeline}, staging was filled from timeline"
            f" {epoch.timeline}",
            fix=fix,
            retry=Retry.AFTER_FIX,
        )
    if timeline > epoch.timeline:
        switched = find_switch(epoch.timeline)
        if switched < staged:
            raise WrongServer(
                f"the server left timeline {epoch.timeline} at {switched}, before the staged LSN"
                f" {staged}: the changes staged after {switched} are not in the server's history",
                fix=fix,
                retry=Retry.AFTER_FIX,
            )
