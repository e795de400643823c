"""Finds what capture would refuse at its start, as problems with its messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cdc_core.capture.diagnosis import diagnose
from cdc_core.errors import Retry, WalgateError
from cdc_core.lake_storage.place import LakePlace
from cdc_core.lake_storage.store_check import find_store_problems
from cdc_core.settings import Settings
from cdc_core.source.problems import Problem, Severity

CODE = "log_not_continued"
STORE_CODE = "lake_store"
# The preflight has reported these slots already. They cannot be compared with the log.
_NO_SLOT_OF_OURS = {"slot_plugin", "slot_database", "slot_two_phase"}


def find_refusals(settings: Settings, found: Sequence[Problem]) -> Iterator[Problem]:
    """Compare log, slot and server as capture does at its start; yield each difference.

    `found` are the problems of the preflight. If the comparison cannot be made now, the problem is
    a warning. Takes a free slot for a moment, confirms nothing to it and changes nothing.
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


def describe_store_problems(root: LakePlace) -> Iterator[Problem]:
    """Yield what the object store of a lake cannot do; nothing for a folder."""
    for found in find_store_problems(root):
        yield Problem(
            Severity.ERROR, STORE_CODE, found.what, f"the store to {found.expected}", found.found,
            found.fix,
        )  # fmt: skip


def _describe(severity: Severity, error: WalgateError) -> Problem:
    return Problem(
        severity,
        CODE,
        error.message,
        "a slot and a server that match the log",
        "a mismatch" if severity is Severity.ERROR else "no answer",
        error.fix,
    )
