"""The publications and the origin that capture asks for; each commit of the log records them.

After a restart the server sends all unconfirmed transactions again. If capture now asks for other
publications or another origin, the server sends other transactions than before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cdc_core.lake_storage.durability import locate_commit
from cdc_core.lake_storage.place import LakePlace
from cdc_core.settings import SourceSettings

_KEY = "walgate.subscription"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The publications and the origin that capture asks the server for."""

    publication: tuple[str, ...]
    origin: str

    @classmethod
    def of(cls, source: SourceSettings) -> Subscription:
        """The subscription of the settings."""
        return cls(source.publication, source.origin)

    def describe(self) -> dict[str, str]:
        """The subscription as metadata of a commit."""
        return {_KEY: json.dumps([self.publication, self.origin])}


def read_subscription(table: LakePlace, version: int) -> Subscription | None:
    """The subscription of the newest commit, up to a version, that has one; None if none has.

    Commits of other programs, such as OPTIMIZE, have none. Raises: OSError.
    """
    while version >= 0 and (commit := locate_commit(table, version)).exists():
        for line in commit.read_text().splitlines():
            stored = json.loads(line).get("commitInfo", {}).get(_KEY)
            if stored is not None:
                publication, origin = json.loads(stored)
                return Subscription(tuple(publication), origin)
        version -= 1
    return None


@dataclass(frozen=True, slots=True)
class SubscriptionChange:
    """The subscription of the log's newest changes, and the one of the settings."""

    before: Subscription
    now: Subscription

    def explain(self) -> str:
        """Which settings changed, from what to what."""
        before, now = self.before, self.now
        changes: list[str] = []
        if set(before.publication) != set(now.publication):
            names = (", ".join(before.publication), ", ".join(now.publication))
            changes.append("[source] publication was changed from {} to {}".format(*names))
        if before.origin != now.origin:
            changes.append(f"[source] origin was changed from {before.origin} to {now.origin}")
        return " and ".join(changes)


def find_subscription_change(
    before: Subscription | None, now: Subscription
) -> SubscriptionChange | None:
    """The change; None if nothing changed. The order of publications does not count."""
    if before is None:
        return None
    is_same = set(before.publication) == set(now.publication) and before.origin == now.origin
    return None if is_same else SubscriptionChange(before, now)
