"""Environment variables of a worker, computed from the slots of its job. Pure.

A script that does not call `coddl.prepare` gets what torchrun and other launchers give, so that it
finds its peers with `init_process_group`. They hold for the moment a worker starts. A script that
calls `coddl.prepare` gets none of them: it may be resized later, asks `coddl.is_main` instead of
RANK, and must not take a branch that it has for torchrun. It is the same in a pool and with
`coddl run`.

A worker sees its own GPU and no other, which may be another job's tomorrow. So each worker is told
that it is a node of one process, as by `torchrun --nnodes=WORLD_SIZE --nproc-per-node=1`: then
`torch.cuda.set_device(LOCAL_RANK)` finds its GPU. On which machines they really are is told by
CODDL_NODES and CODDL_GPUS_PER_NODE.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.slots import Slot, uri_for

LAUNCHER: Final = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"),
        *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "GROUP_WORLD_SIZE"),
        *("MASTER_ADDR", "MASTER_PORT"),
    }
)


# NCCL's watchdog would end every worker whose peer has died. Ours go on without it: they learn of a
# death from the group's own error, or from the supervisor.
SURVIVING: Final = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_FR_BUFFER_SIZE": "0",
}
ON_ONE_GPU: Final = "CODDL_NCCL_ON_ONE_GPU"  # for tests: workers that share a GPU use NCCL, too


def nccl_variables(job: Job, worker: int) -> dict[str, str]:
    """Have a worker of an elastic job outlive its peers; and, for tests, share its GPU."""
    if ON_ONE_GPU not in job.env:
        return SURVIVING
    # NCCL refuses two workers on one GPU of one host: each looks like a host of its own.
    apart = {"NCCL_HOSTID": f"{job.name}-{worker}", "NCCL_SOCKET_IFNAME": "lo"}
    return SURVIVING | apart


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """Give an environment without what torchrun has told a process in it."""
    return {
        name: value
        for name, value in environ.items()
        if name not in LAUNCHER and not name.startswith("TORCHELASTIC_")
    }


@dataclass(frozen=True, slots=True)
class RankTable:
    """The slots of a job as ranks: node by node, in the order in which the nodes are named."""

    slots: tuple[Slot, ...]
    store: tuple[str, int]  # where they meet
    restarts: int = 0  # of all of them together, within the attempt

    @classmethod
    def of(cls, slots: Sequence[Slot], store: tuple[str, int], restarts: int = 0) -> "RankTable":
        nodes = list(dict.fromkeys(slot.node for slot in slots))
        ordered = sorted(slots, key=lambda slot: (nodes.index(slot.node), slot.number))
        return cls(tuple(ordered), store, restarts)


def launcher_variables(job: Job, slot: Slot, ranks: RankTable) -> dict[str, str]:
    """Tell a worker its rank and where its peers are, as torchrun does."""
    rank = ranks.slots.index(slot)
    host, port = ranks.store
    restarts = job.attempt - 1 + ranks.restarts
    return {
        "RANK": f"{rank}",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": f"{len(ranks.slots)}",
        "LOCAL_WORLD_SIZE": "1",
        "NODE_RANK": f"{rank}",
        "GROUP_RANK": f"{rank}",
        "MASTER_ADDR": host,
        "MASTER_PORT": f"{port}",
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # it stands already: no worker has to host it
        "TORCHELASTIC_RESTART_COUNT": f"{restarts}",
        "TORCHELASTIC_RUN_ID": job.id or job.name,
    }


def pool_variables(job: Job, slot: Slot, ranks: RankTable) -> dict[str, str]:
    """Tell a worker of a pool what its job is, and what it may become."""
    sizes = list(Counter(each.node for each in ranks.slots).values())  # in order of rank
    return {
        "CODDL_JOB_ID": job.id,
        "CODDL_ATTEMPT": f"{job.attempt}",
        "CODDL_RESTART_REASON": job.restart_reason,
        "CODDL_MIN_GPUS": f"{job.workers_min}",
        "CODDL_MAX_GPUS": f"{job.workers_max or len(ranks.slots)}",
        "CODDL_CHECKPOINT_DIR": str(job.folder),
        "CODDL_CHECKPOINT_URI": uri_for(job.remote),
        "CODDL_NODES": f"{len(sizes)}",
        "CODDL_GPUS_PER_NODE": f"{sizes[0]}" if len(set(sizes)) == 1 else ",".join(map(str, sizes)),
        # A worker without a GPU must not see one, even on a machine that has GPUs.
        "CUDA_VISIBLE_DEVICES": slot.gpu or "",
    }
