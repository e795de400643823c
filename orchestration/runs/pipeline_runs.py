"""Finds the runs of one pipeline in a Dagster. Walgate never touches other runs in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from cdc_core.settings import Settings

PIPELINE_TAG = "walgate/pipeline"
SLOT_TAG = "walgate/slot"
# Dagster's name for runs of assets that a person materializes, in every code location.
CLICKED_JOB = "__ASSET_JOB"
# Only the sensors launch a run again, not Dagster itself.
_NO_RETRIES = {"dagster/max_retries": "0"}


@dataclass(frozen=True, slots=True)
class PipelineRuns:
    """Distinguishes the runs of one pipeline from all others.

    Runs of its jobs have its tags. A run in which a person materializes assets has no tags: its
    assets and its code location identify it. `location` is None if it is not known.
    """

    tags: Mapping[str, str]
    location: str | None = None

    @classmethod
    def of(
        cls, settings: Settings, context: dg.SensorEvaluationContext | None = None
    ) -> PipelineRuns:
        """The pipeline of a configuration; `context` is that of a sensor of its code location."""
        origin = None if context is None else context.code_location_origin
        return cls(name_pipeline(settings), None if origin is None else origin.location_name)

    def is_of_location(self, run: dg.DagsterRun) -> bool:
        """Whether a run is of this code location; True if either location is not known."""
        origin = run.remote_job_origin
        if origin is None or self.location is None:
            return True
        return origin.repository_origin.code_location_origin.location_name == self.location


def name_pipeline(settings: Settings) -> dict[str, str]:
    """The tags that identify the runs of a pipeline's jobs."""
    return {PIPELINE_TAG: settings.dagster.pipeline, SLOT_TAG: settings.source.slot}


def tag_runs(settings: Settings) -> dict[str, str]:
    """The tags of every job of a pipeline."""
    return name_pipeline(settings) | _NO_RETRIES


def name_pool(settings: Settings, pool: str) -> str:
    """The name of a pool that no other pipeline of the same Dagster shares."""
    return f"{settings.dagster.pipeline}_{pool}"
