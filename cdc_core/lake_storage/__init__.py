"""The storage of the lake: what is at a place in it, how it gets durable there, and its locks."""
