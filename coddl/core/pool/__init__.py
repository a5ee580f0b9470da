"""The live pool, purely: jobs, nodes and devices as a fold of the journal's records."""
