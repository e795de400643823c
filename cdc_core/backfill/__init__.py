"""Reads tables into the log, chunk by chunk, while the stream goes on. The result is exact."""
