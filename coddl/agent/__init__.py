"""The process on a node: holds its devices under a lease, leads jobs, hosts their workers."""
