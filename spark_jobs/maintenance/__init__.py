"""Maintenance of a lake: which cuts are kept, how far the log may be trimmed, what is removed."""
