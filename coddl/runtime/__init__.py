"""The library inside the training process, and the supervisor that resizes one job.

    worker/      what `coddl.prepare` sets up: standard library and torch
    supervisor/  what `coddl run` runs: standard library alone
    and beside them what both must agree on: messages, virtual nodes, the format of images

Nothing else of ours is imported: it must fit into any training environment. (ADR 0006)
"""
