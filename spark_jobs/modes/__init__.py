"""The modes of tables: which rows a table has, apart from how a merge writes them."""
