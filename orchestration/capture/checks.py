"""Checks of the staging asset: how much WAL the slot holds back, how far staging is behind.

Sensor keep_replicating evaluates them, so they need no run. A person can evaluate them at once on
the page.
"""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from cdc_core.errors import SourceError, StagingError
from cdc_core.settings import Settings
from cdc_core.staging.tables import staging_errors
from orchestration.runs.keys import AssetKeys
from orchestration.runs.source_view import SourceView, read_source_view
from spark_jobs.lake.lake import Lake

# Shares of the slot's budget at which the check warns, and at which it reports an error.
_WARN_SHARE, _ERROR_SHARE = 0.5, 0.9
_LAG_S = 300.0


def build_staging_checks(settings: Settings) -> dg.AssetChecksDefinition:
    """Both checks, for a person to evaluate on the page."""
    staging = AssetKeys.of(settings).staging

    @dg.multi_asset_check(
        name="check_staging",
        specs=[
            dg.AssetCheckSpec(
                "slot_budget",
                asset=staging,
                description="The slot holds back less than half of the WAL it may.",
            ),
            dg.AssetCheckSpec(
                "staging_lag",
                asset=staging,
                description="Staging is at most five minutes behind the source.",
            ),
        ],
        can_subset=True,
    )
    def check_staging(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        for found in evaluate_staging(settings, read_source_view(settings)):
            if found.asset_check_key in context.selected_asset_check_keys:
                yield dg.AssetCheckResult(
                    passed=found.passed,
                    asset_key=found.asset_key,
                    check_name=found.check_name,
                    severity=found.severity,
                    metadata=found.metadata,
                )

    return check_staging


def evaluate_staging(
    settings: Settings, look: SourceView | SourceError
) -> list[dg.AssetCheckEvaluation]:
    """Evaluate both checks. If the source is down, both fail, with the reason."""
    if isinstance(look, SourceError):
        down: dict[str, Any] = {"reason": look.message, "fix": look.fix}
        return [
            _judge(settings, "slot_budget", 1.0, down),
            _judge(settings, "staging_lag", 1.0, down),
        ]
    return [_judge_slot(settings, look), _judge_lag(settings, look)]


def _judge_slot(settings: Settings, look: SourceView) -> dg.AssetCheckEvaluation:
    """Judge the share of its budget that the slot holds back; a missing or lost slot fails."""
    retention = look.retention
    if retention is None:
        status = look.slot.wal_status if look.slot else "missing"
        return _judge(
            settings, "slot_budget", 1.0, {"slot": settings.source.slot, "wal_status": status}
        )
    said = retention.describe(look.growth) | {"summary": retention.explain(look.growth)}
    return _judge(settings, "slot_budget", retention.used_percent / 100, said)


def _judge_lag(settings: Settings, look: SourceView) -> dg.AssetCheckEvaluation:
    """Judge how far staging is behind the source; a log that cannot be read is an error."""
    figures = look.figures
    lake = Lake.of(settings)
    try:
        with staging_errors("read the log"):
            staged = lake.read_staged(lake.read_epochs())
    except StagingError as error:
        said = {"source_lsn": str(look.current), "reason": error.message, "fix": error.fix}
        return _judge(settings, "staging_lag", 1.0, said)
    behind = None if staged is None else max(0, look.current - staged.lsn)
    # Without live figures, only the lag in bytes is known.
    seconds = 0.0 if not behind else figures.lag_seconds if figures else None
    lag = {
        "source_lsn": str(look.current),
        "staged_lsn": "nothing" if staged is None else str(staged.lsn),
        "lag_bytes": behind,
        "lag_seconds": seconds,
    }
    return _judge(
        settings, "staging_lag", 1.0 if seconds is None else seconds / _LAG_S * _WARN_SHARE, lag
    )


def _judge(
    settings: Settings, name: str, share: float, metadata: dict[str, Any]
) -> dg.AssetCheckEvaluation:
    """Evaluate a check: it passes below the warning share. Metadata that is None is left out."""
    is_error = share >= _ERROR_SHARE
    return dg.AssetCheckEvaluation(
        passed=share < _WARN_SHARE,
        asset_key=AssetKeys.of(settings).staging,
        check_name=name,
        severity=dg.AssetCheckSeverity.ERROR if is_error else dg.AssetCheckSeverity.WARN,
        metadata={key: value for key, value in metadata.items() if value is not None},
    )
