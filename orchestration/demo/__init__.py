"""The demo: a shop on PostgreSQL, replicated through Dagster and compared with its tables."""
