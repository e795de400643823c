"""What every command starts from: which configuration was named, and how to read it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_core.settings import Settings
    from orchestration.log_lines import LogForm


@dataclass(frozen=True, slots=True)
class Context:
    """The options that stand before the command."""

    config: Path | None
    log: LogForm = "logfmt"

    def load_settings(self) -> Settings:
        """Read the configuration. Raises: ConfigurationError."""
        from cdc_core.settings import load_settings

        return load_settings(self.config, os.environ)

    def find_config(self) -> Path:
        """Say where the configuration is, for other processes. Raises: ConfigurationError."""
        from cdc_core.settings import find_file

        return find_file(self.config, os.environ)
