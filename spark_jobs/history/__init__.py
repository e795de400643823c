"""Histories: every version that a row had, each from one end LSN to another."""
