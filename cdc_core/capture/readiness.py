"""What capture would refuse when it starts, as problems of the preflight and in capture's words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_core.capture.diagnosis import diagnose
from cdc_core.errors import Retry, WalgateError
from cdc_core.settings import Settings
from cdc_core.source.problems import Problem, Severity

CODE = "log_not_continued"
# The preflight has described such a slot. It cannot be compared with the log.
_NO_SLOT_OF_OURS = {"slot_plugin", "slot_database", "slot_two_phase"}


def find_refusals(settings: Settings, found: Sequence[Problem]) -> Iterator[Problem]:
    """What capture finds wrong when it compares log, slot and server at its start.

    `found` are the problems of the preflight. A comparison that cannot be made now is a warning.
    Takes a free slot for a moment, confirms nothing to it and changes nothing.
    """
    if any(problem.code in _NO_SLOT_OF_OURS for problem in found):
        return
    try:
        differences = diagnose(settings, application_name="walgate check").discontinuities
    except WalgateError as error:
        is_wrong = error.retry is Retry.AFTER_FIX
        yield _describe(Severity.ERROR if is_wrong else Severity.WARNING, error)
        return
    for difference in differences:
        yield _describe(Severity.ERROR, difference)


def _describe(severity: Severity, error: WalgateError) -> Problem:
    return Problem(
        severity,
        CODE,
        error.message,
        "a slot and a server that continue the log",
        "others" if severity is Severity.ERROR else "no answer",
        error.fix,
    )
