"""The lake's folder, its locks and its ledgers; which tables are complete."""
