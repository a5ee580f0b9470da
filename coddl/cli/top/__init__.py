"""`coddl top`: the pool at a glance, live, in a terminal."""
