"""What a test needs of the machine: a named skip by hand, a failure where all is required."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def report_missing(what: str, fix: str) -> NoReturn:
    """Skip the test with the reason, or fail it where `WALGATE_REQUIRE=all`."""
    reason = f"{what} is missing: {fix}"
    if os.environ.get("WALGATE_REQUIRE") == "all":
        pytest.fail(f"{reason} (WALGATE_REQUIRE=all)", pytrace=False)
    pytest.skip(reason)
