"""What a table of the lake has, and what each commit to it records."""
