"""Whole tables into the log while the stream goes on: exactly, chunk by chunk."""
