"""How the texts of each PostgreSQL type become typed values, and texts again."""
