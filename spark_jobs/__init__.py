"""The log to tables people query. Spark only; no Dagster, psycopg or Redis."""
