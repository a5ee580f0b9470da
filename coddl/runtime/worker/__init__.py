"""The library inside the training process: one line of the script, and what hangs on it."""
