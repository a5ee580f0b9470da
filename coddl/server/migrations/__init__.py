"""How a journal's tables came to be what they are: run by `store_sql` whenever one is opened."""
