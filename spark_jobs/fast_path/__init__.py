"""Writes what Arrow can write exactly, without a job of Spark's or as its tasks."""
