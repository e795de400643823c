"""The Spark session of a process, and what fails in it."""
