"""Targets of entries: a row for each entry of the log about a table. Nothing is folded."""
