"""Live figures of a capture run: what a person watches, never what correctness rests on."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Figures:
    """One look at a running capture.

    Units: bytes and seconds of lag, rows per second over the last second or so, bytes per second by
    which the WAL grows that the slot holds back, Unix seconds for `at`. LSNs are text; rows,
    transactions (those of marks too) and batches are of the session.
    """

    term: int | None
    state: str
    epoch: int
    staged_lsn: str
    current_lsn: str
    lag_bytes: int
    lag_seconds: float
    rows_per_second: float
    rows: int
    transactions: int
    batches: int
    at: float
    storage_error: str = ""
    retained_growth: float | None = None

    def to_fields(self) -> dict[str, str]:
        """As a Redis hash."""
        return {f.name: _format(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_fields(cls, stored: dict[str, str]) -> Figures | None:
        """From a Redis hash; None where it is absent or of another shape."""
        try:
            return cls(
                term=int(stored["term"]) if stored["term"] else None,
                state=stored["state"],
                epoch=int(stored["epoch"]),
                staged_lsn=stored["staged_lsn"],
                current_lsn=stored["current_lsn"],
                lag_bytes=int(stored["lag_bytes"]),
                lag_seconds=float(stored["lag_seconds"]),
                rows_per_second=float(stored["rows_per_second"]),
                rows=int(stored["rows"]),
                transactions=int(stored["transactions"]),
                batches=int(stored["batches"]),
                at=float(stored["at"]),
                storage_error=stored["storage_error"],
                retained_growth=_parse_optional(stored["retained_growth"]),
            )
        except (KeyError, ValueError):
            return None


def _parse_optional(text: str) -> float | None:
    return float(text) if text else None


def _format(value: object) -> str:
    return "" if value is None else str(value)
