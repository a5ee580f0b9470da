"""Nodes of a Slurm cluster for a pool: each is a job of Slurm that runs an agent, a pilot job."""
