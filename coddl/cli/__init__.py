"""The `coddl` command."""
