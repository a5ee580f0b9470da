"""What workers of `coddl inspect` do: they exchange, update and copy, and tell how long it took."""
