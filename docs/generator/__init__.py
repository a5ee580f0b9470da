"""Writes the pages of docs/reference/ from the code; `python -m docs.generator` runs it."""
