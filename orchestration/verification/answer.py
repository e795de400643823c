"""Formats what a verification found, as JSON and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cdc_core.comparing import UUID_DIGITS, Ordering, RangeSum
from cdc_core.staging.verifications import FoundRange, Verified
from orchestration.verification.healing import VerificationResult

ANSWER_VERSION = 1
_UUID_TEXT_DIGITS = 32
# Where uuids have their dashes.
_UUID_PARTS = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))


def describe_verdict(verdict: VerificationResult) -> dict[str, Any]:
    """The whole answer as JSON."""
    return {
        "version": ANSWER_VERSION,
        "lsn": str(verdict.lsn),
        "tables": [_describe_table(found) for found in verdict.tables],
    }


def format_verdict(verdict: VerificationResult) -> Iterator[str]:
    """A line for each table, and one for each range that differs."""
    width = max((len(str(found.table)) for found in verdict.tables), default=0)
    for found in verdict.tables:
        line = f"{found.table!s:{width}}  {found.result}"
        if found.source is not None and found.lake is not None:
            line += f" at {found.lsn}, {found.source.rows:,} rows"
            if found.lake.rows != found.source.rows:
                line += f", {found.lake.rows:,} in the lake"
            if found.coverage is not None and found.coverage < 1:
                line += f", {100 * found.coverage:.1f} % of the table"
        line += f", {found.seconds:.1f} s"
        if found.healed:
            line += ", healed"
        yield f"{line}: {found.reason}" if found.reason else line
        for one in found.ranges:
            yield f"{'':{width}}  {_format_range(found, one)}"


def describe_range(ordering: Ordering | None, one: FoundRange) -> dict[str, Any]:
    """A range as JSON: its first and last key or hash, None without that bound; and its counts."""
    low, high = one.part.low, None if one.part.high is None else one.part.high - 1
    ends: dict[str, Any] = {"from": None, "to": None}
    match ordering:
        case Ordering.INTEGER:
            ends = {"from": _text(low), "to": _text(high)}
        case Ordering.UUID:
            ends = {"from": _format_uuid(low, "0"), "to": _format_uuid(high, "f")}
        case Ordering.HASH:
            ends["hashes"] = [low, high]
        case None:
            pass
    counts = {
        "source_rows": one.source_rows,
        "lake_rows": one.lake_rows,
        "keys": one.keys,
        "holes": one.holes,
    }
    return ends | counts


def _describe_table(found: Verified) -> dict[str, Any]:
    return {
        "table": str(found.table),
        "result": found.result,
        "reason": found.reason,
        "lsn": str(found.lsn),
        "coverage": found.coverage,
        "source": _describe_sum(found.source),
        "lake": _describe_sum(found.lake),
        "ranges": [describe_range(found.ordering, one) for one in found.ranges],
        "healed": found.healed,
        "seconds": found.seconds,
    }


def _describe_sum(one: RangeSum | None) -> dict[str, Any] | None:
    return None if one is None else {"rows": one.rows, "checksum": one.checksum}


def _format_range(found: Verified, one: FoundRange) -> str:
    told = describe_range(found.ordering, one)
    if "hashes" in told:
        low, high = told["hashes"]
        place = f"hashes {_show(low)} to {_show(high)}"
    else:
        place = f"keys {_show(told['from'])} to {_show(told['to'])}"
    line = f"{place}: {one.source_rows:,} rows in the source, {one.lake_rows:,} in the lake"
    if one.keys is not None:
        line += ", 1 key differs" if one.keys == 1 else f", {one.keys:,} keys differ"
    return f"{line}, {one.holes:,} with missing values" if one.holes else line


def _format_uuid(ordinal: int | None, rest: str) -> str | None:
    if ordinal is None:
        return None
    # A range may begin below the first uuid of all, or end above the last.
    within = min(max(ordinal, 0), 16**UUID_DIGITS - 1)
    digits = f"{within:0{UUID_DIGITS}x}".ljust(_UUID_TEXT_DIGITS, rest)
    return "-".join(digits[start:end] for start, end in _UUID_PARTS)


def _text(ordinal: int | None) -> str | None:
    return None if ordinal is None else str(ordinal)


def _show(value: object) -> object:
    return "…" if value is None else value
