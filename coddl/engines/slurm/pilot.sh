#!/bin/sh
# What Slurm runs for a node of a pool: a command, in whose place it steps.
exec "$@"
