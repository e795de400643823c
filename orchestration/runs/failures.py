"""What a failed command or run prints, and its exit code.

A line says what happened, where, what was expected and found, and the fix. The text of another
library's exception may hold a row value or a secret, so it is not repeated, not in the traceback of
`--debug` either. A line does repeat the message of the command line parser and the operating
system's.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

from cdc_core.errors import ConfigurationError, WalgateError

WRONG_USE = 2
MAY_CURE_ITSELF = 3


@dataclass(frozen=True, slots=True)
class Failure:
    """The lines for standard error and the exit code."""

    lines: tuple[str, ...]
    exit_code: int


def explain_failure(error: BaseException) -> Failure:
    """Explain an exception to the person who gave the command."""
    if isinstance(error, ConfigurationError):
        has_fixes = all("fix: " in problem for problem in error.problems)
        fix = "" if has_fixes else f"; fix: {error.fix}"
        return Failure(tuple(f"{problem}{fix}" for problem in error.problems), error.exit_code)
    if isinstance(error, WalgateError):
        code, what, fix = error.exit_code, error.message, error.fix
    elif refusal := _find_refusal(error):
        what = refusal.replace("Value error, ", "")
        code, fix = WRONG_USE, "see `walgate --help`"
    elif isinstance(error, KeyboardInterrupt) or type(error).__name__ == "Abort":
        code, what, fix = (
            MAY_CURE_ITSELF,
            "interrupted",
            "run it again: it resumes where it stopped",
        )
    elif isinstance(error, OSError) and error.strerror:
        target = f": {error.filename}" if error.filename else ""
        code, what = MAY_CURE_ITSELF, f"{error.strerror}{target}"
        fix = "check that it exists, that this user may use it, and that the disk has space"
    else:
        what = f"unexpected {type(error).__name__} in {_place(error)}"
        fix = (
            "run it again; if it fails again, report it with its traceback (--debug, or a run's"
            " stderr)"
        )
        code = MAY_CURE_ITSELF
    line = " ".join(f"{what.rstrip('.')}; fix: {fix}".splitlines())
    return Failure((line,), code)


def trace_failure(error: BaseException) -> str:
    """The tracebacks of an exception and of its causes; only our own errors have their texts."""
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = "" if behind is None else trace_failure(behind) + "\n\nled to\n\n"
    frames = "".join(traceback.format_tb(error.__traceback__))
    text = f": {error}" if isinstance(error, WalgateError) else ""
    return f"{before}{frames}{type(error).__qualname__}{text}"


def _find_refusal(error: BaseException) -> str | None:
    """The message of a command line parser's error, whose class is private to typer; else None."""
    write = getattr(error, "format_message", None)
    return write() if write and getattr(error, "exit_code", None) is not None else None


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).stem}:{frames[-1].lineno}" if frames else "no frame"
