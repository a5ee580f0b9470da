"""A whole pool in virtual time, by seeds: production server and agents, and all that goes wrong.

python -m coddl.testing.full_system --seeds 0..1000 --jobs 2
"""
