"""Reads the lake of a pipeline from Python, with all tables at one LSN.

`walgate.open("walgate.toml").at("latest").table("public.orders").to_polars()` reads a table at the
newest cut. The page docs/reading.md explains the rest.
"""

from cdc_core.errors import ConfigurationError, LakeError, WalgateError
from walgate.lake import Lake, LakeAt
from walgate.lake import open_lake as open  # noqa: A004 - callers write `walgate.open`.
from walgate.table import TableAt, TableWarning

__all__ = [
    "ConfigurationError",
    "Lake",
    "LakeAt",
    "LakeError",
    "TableAt",
    "TableWarning",
    "WalgateError",
    "open",
]
