"""Verification as a check and a job; comparing and healing tables."""
