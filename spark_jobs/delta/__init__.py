"""Parquet files of Delta tables that are written and read without Spark."""
