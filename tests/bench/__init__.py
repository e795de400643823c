"""Measurements; nothing here asserts on time."""
