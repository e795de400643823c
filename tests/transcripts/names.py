"""Names in place of what differs from run to run: LSNs, transaction ids, times and oids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Names:
    """A name for each such value of one transcript. Equal values have equal names.

    The numbers of LSNs are in the order of the LSNs, all others in the order in which they appear.
    """

    lsns: dict[int, str]
    xids: dict[int, str]
    times: dict[Any, str]
    oids: dict[int, str]

    @classmethod
    def of(cls, entries: Iterable[dict[str, Any]], oids: Iterable[int]) -> Names:
        """Name what log entries have, which are in the order of their positions."""
        rows = list(entries)
        lsns = {row[column] for row in rows for column in ("commit_lsn", "end_lsn")}
        return cls(
            _number("lsn", sorted(lsns)),
            _number("xid", (row["xid"] for row in rows)),
            _number("time", (row["committed_at"] for row in rows)),
            _number("oid", oids),
        )


def _number(kind: str, values: Iterable[Any]) -> dict[Any, str]:
    return {value: f"<{kind} {i}>" for i, value in enumerate(dict.fromkeys(values), 1)}
