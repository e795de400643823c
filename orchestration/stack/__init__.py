"""Dagster's processes, started, watched and ended."""
