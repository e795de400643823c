"""Maintenance of the lake under Dagster and from a shell."""
