"""How the schema of a table of the lake follows the announcements of the stream."""
