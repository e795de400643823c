"""Whole transactions, staged, then confirmed."""
