"""The PostgreSQL server: the only place that talks to it."""
