"""Backfills as an asset and a job, with their queue and their sensors."""
