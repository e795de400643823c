"""Writes what Arrow can write exactly, in tasks of Spark."""
