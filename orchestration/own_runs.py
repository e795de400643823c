"""Which runs of a Dagster are a pipeline's: others in the same instance are never touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from cdc_core.settings import Settings

PIPELINE_TAG = "walgate/pipeline"
SLOT_TAG = "walgate/slot"
# Under this name Dagster runs assets that a person materializes, of every code location.
CLICKED_JOB = "__ASSET_JOB"
# No second relauncher beside the sensors.
_NO_RETRIES = {"dagster/max_retries": "0"}


@dataclass(frozen=True, slots=True)
class Own:
    """Tells the runs of one pipeline from all others.

    Its jobs carry its tags. A run by which a person materializes assets carries none, and is known
    by its assets and by its code location; `location` is None if that is not known.
    """

    tags: Mapping[str, str]
    location: str | None = None

    @classmethod
    def of(cls, settings: Settings, context: dg.SensorEvaluationContext | None = None) -> Own:
        """The pipeline of a configuration; `context` is that of a sensor of its code location."""
        origin = None if context is None else context.code_location_origin
        return cls(name_pipeline(settings), None if origin is None else origin.location_name)

    def is_of_location(self, run: dg.DagsterRun) -> bool:
        """Whether a run was launched from this code location, as far as both are known."""
        origin = run.remote_job_origin
        if origin is None or self.location is None:
            return True
        return origin.repository_origin.code_location_origin.location_name == self.location


def name_pipeline(settings: Settings) -> dict[str, str]:
    """The tags by which runs of a pipeline's jobs are known."""
    return {PIPELINE_TAG: settings.dagster.pipeline, SLOT_TAG: settings.source.slot}


def tag_runs(settings: Settings) -> dict[str, str]:
    """The tags of every job of a pipeline."""
    return name_pipeline(settings) | _NO_RETRIES


def name_pool(settings: Settings, pool: str) -> str:
    """A pool that no other pipeline of the same Dagster shares."""
    return f"{settings.dagster.pipeline}_{pool}"
