"""The assets of the merge, and what a merge run reports."""
