"""Stages whole transactions of the stream, then confirms them to the slot."""
