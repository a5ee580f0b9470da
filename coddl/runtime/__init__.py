"""The library inside the training process, and the supervisor that resizes one job.

Standard library and torch only, and nothing of ours: it must fit into any training environment.
The supervisor's side (`supervisor`, `coordinator`, `zygote` before its fork) needs no torch either.
"""
