"""Brings the changes of PostgreSQL into an ordered, durable log. No Dagster, no Spark."""
