"""Bytes of the replication stream to values and Arrow columns; no I/O."""
