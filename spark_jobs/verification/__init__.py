"""Checksums of a table's rows, computed inside Spark."""
