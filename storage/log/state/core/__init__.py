"""How a file lies in the rows of a table, as pure decisions."""
