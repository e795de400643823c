"""The log on disk. No other package writes it."""
