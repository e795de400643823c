"""Rounds: every table merged up to one cut."""
