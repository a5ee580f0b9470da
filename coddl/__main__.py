"""`python -m coddl` is `coddl`."""

from coddl.cli.main import main

main()
