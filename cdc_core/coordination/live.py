"""Live figures of a running capture, for a person who watches. Correctness never needs them."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a running capture at one moment.

    Units: lag in bytes and in seconds; rows per second over the last second or so; `at` in Unix
    seconds; `retained_growth` in bytes per second by which the slot's retained WAL grows. LSNs are
    text. `rows`, `transactions` and `batches` count since the term began; `transactions` includes
    those of marks.
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
        """Format the figures as the fields of a Redis hash."""
        return {f.name: _format(getattr(self, f.name)) for f in fields(self)}

    @classmethod
    def from_fields(cls, stored: dict[str, str]) -> Figures | None:
        """Parse the fields of a Redis hash; None if the hash is absent or has another form."""
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
