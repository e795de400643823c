"""Reads the log: its files, its entries, and what a range of it holds."""
