"""Targets of entries: each entry of the log that is about a table, as a row. Nothing is folded."""
