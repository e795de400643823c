"""What capture asks of its slot: a commit of the log keeps what its changes were sent for.

After a restart the server sends again what it holds unconfirmed. It sends other transactions where
other publications or another origin were asked for meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cdc_core.durability import locate_commit
from cdc_core.settings import SourceSettings

_KEY = "walgate.subscription"


@dataclass(frozen=True, slots=True)
class Subscription:
    """The publications whose changes are sent, and from what origin."""

    publication: tuple[str, ...]
    origin: str

    @classmethod
    def of(cls, source: SourceSettings) -> Subscription:
        """What the settings ask for."""
        return cls(source.publication, source.origin)

    def describe(self) -> dict[str, str]:
        """Metadata of a commit."""
        return {_KEY: json.dumps([self.publication, self.origin])}


def read_subscription(table: Path, version: int) -> Subscription | None:
    """What the changes of a commit were sent for; None where it brought none. Raises: OSError."""
    for line in locate_commit(table, version).read_text(encoding="utf-8").splitlines():
        stored = json.loads(line).get("commitInfo", {}).get(_KEY)
        if stored is not None:
            publication, origin = json.loads(stored)
            return Subscription(tuple(publication), origin)
    return None


def explain_change(before: Subscription | None, now: Subscription) -> str | None:
    """Which settings changed, from what to what; None if none did."""
    changes: list[str] = []
    if before is not None and set(before.publication) != set(now.publication):
        names = (", ".join(before.publication), ", ".join(now.publication))
        changes.append("[source] publication was changed from {} to {}".format(*names))
    if before is not None and before.origin != now.origin:
        changes.append(f"[source] origin was changed from {before.origin} to {now.origin}")
    return " and ".join(changes) or None
