"""The process on a node: holds its devices under a lease, runs jobs, hosts their workers."""
