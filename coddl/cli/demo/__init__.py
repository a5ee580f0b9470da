"""`coddl demo`: a pool at work, for those who see one for the first time."""
