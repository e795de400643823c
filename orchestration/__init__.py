"""Dagster and the command line; thin: no SQL over rows, no loops over rows."""
