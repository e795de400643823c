"""The PostgreSQL server. No other package of the pipeline connects to it."""
