"""Whether a machine, or a cluster of an engine, is fit for a pool: `coddl doctor`.

Each concern has a module: what was gathered is data, and what follows from it a pure function that
gives results.
"""
