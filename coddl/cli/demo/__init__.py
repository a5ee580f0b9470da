"""`coddl demo`: a pool at work, for a first look."""
