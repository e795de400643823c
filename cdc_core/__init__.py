"""PostgreSQL to an ordered, durable log of changes. No Dagster, no Spark."""
