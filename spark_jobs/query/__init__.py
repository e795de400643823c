"""Reads tables as of one LSN."""
