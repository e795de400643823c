"""What Dagster loads: the pipeline of `$WALGATE_CONFIG`, else of ./walgate.toml."""

from __future__ import annotations

import os

from cdc_core.settings import load_settings
from orchestration.assembly import build_definitions

defs = build_definitions(load_settings(None, os.environ))
