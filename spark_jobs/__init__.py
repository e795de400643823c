"""Merges the log into tables that people query. Imports no Dagster, psycopg or Redis."""
