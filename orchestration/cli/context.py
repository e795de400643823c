"""The options that all commands share, and how a command reads the configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc_core.settings import Settings
    from orchestration.runs.log_lines import LogForm


@dataclass(frozen=True, slots=True)
class Context:
    """The options that all commands share."""

    config: Path | None
    log: LogForm = "logfmt"

    def load_settings(self) -> Settings:
        """Read the configuration. Raises: ConfigurationError."""
        from cdc_core.settings import load_settings

        return load_settings(self.config, os.environ)

    def find_config(self) -> Path:
        """The path of the configuration, for other processes. Raises: ConfigurationError."""
        from cdc_core.settings import find_file

        return find_file(self.config, os.environ)
