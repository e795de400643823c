"""Decodes the bytes of the replication stream to values and Arrow columns. No I/O."""
