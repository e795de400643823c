"""The log on disk: the only place that writes it."""
