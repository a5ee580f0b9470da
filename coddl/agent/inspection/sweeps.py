"""Which workers an inspection needs, which of them exchange, and what. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from coddl.agent.inspection.hardware import NodeHardware
from coddl.agent.node_resources import cores_of
from coddl.core.speed.inspection import LinkClass

COUNTS: Final = (2, 3, 4, 8, 16, 32)  # of workers in a sweep
ON_NODE_MAX: Final = 4  # workers on CPU slots, or on one GPU
GPUS_MAX: Final = 8
BUCKET_BYTES: Final = 25 << 20  # as the runtime cuts gradients

DeviceClass = Literal["cpu", "gpu"]


class InspectionSlot(NamedTuple):
    """Where a worker runs."""

    gpu: str | None
    cores: tuple[int, ...]


class LinkSweep(NamedTuple):
    """Workers that exchange over a link; the first n of them when n do."""

    link: LinkClass
    members: tuple[int, ...]
    backend: str
    on: DeviceClass


@dataclass(frozen=True, slots=True)
class SweepExtent:
    """How much is measured."""

    sizes: tuple[int, ...]  # of exchanges and messages, ascending
    gpu_sizes: tuple[int, ...]  # the same between GPUs
    update_bytes: int  # of parameters, on the host
    gpu_update_bytes: int
    within_s: float  # about how long each is repeated

    def sizes_on(self, on: DeviceClass) -> tuple[int, ...]:
        return self.gpu_sizes if on == "gpu" else self.sizes


_KB, _MB = 1 << 10, 1 << 20
_SMALL: Final = (_KB, 4 * _KB, 16 * _KB, 64 * _KB, 256 * _KB, _MB, 4 * _MB, 16 * _MB)
WHOLE: Final = SweepExtent(
    sizes=(*_SMALL, BUCKET_BYTES, 64 * _MB),
    gpu_sizes=(*_SMALL, BUCKET_BYTES, 64 * _MB, 256 * _MB),
    update_bytes=64 * _MB,
    gpu_update_bytes=1024 * _MB,
    within_s=0.15,
)
QUICK: Final = SweepExtent(
    sizes=(_KB, 32 * _KB, 256 * _KB, _MB, 8 * _MB),
    gpu_sizes=(_KB, 32 * _KB, _MB, BUCKET_BYTES),
    update_bytes=4 * _MB,
    gpu_update_bytes=64 * _MB,
    within_s=0.06,
)


def planned(
    node: NodeHardware, *, nccl_on_one_gpu: bool = False
) -> tuple[tuple[InspectionSlot, ...], tuple[LinkSweep, ...]]:
    """Choose the workers of a node, and the links that they measure."""
    parts = cores_of(len(node.devices), node.cores)
    if not node.has_gpus:
        slots = [InspectionSlot(None, part) for part in parts[:ON_NODE_MAX]]
        return tuple(slots), _sweeps(LinkSweep("node", tuple(range(len(slots))), "gloo", "cpu"))
    slots = [
        InspectionSlot(device.gpu, part) for device, part in zip(node.devices, parts, strict=True)
    ][:GPUS_MAX]
    apart = LinkSweep("node", tuple(range(len(slots))), "nccl", "gpu")
    if not node.may_share_gpu:
        return tuple(slots), _sweeps(apart)
    together = (0, *range(len(slots), len(slots) + ON_NODE_MAX - 1))
    slots += [slots[0]] * (ON_NODE_MAX - 1)
    # NCCL refuses two workers on one GPU; trainings use gloo there.
    backend = "nccl" if nccl_on_one_gpu else "gloo"
    return tuple(slots), _sweeps(LinkSweep("gpu", together, backend, "gpu"), apart)


def _sweeps(*sweeps: LinkSweep) -> tuple[LinkSweep, ...]:
    return tuple(each for each in sweeps if len(each.members) > 1)


def counts_up_to(members: int) -> tuple[int, ...]:
    """Give the numbers of workers that exchange, all of them being one."""
    return tuple(sorted({*(n for n in COUNTS if n <= members), members} - {0, 1}))


def cluster_backend(has_gpus: Sequence[bool]) -> tuple[str, DeviceClass]:
    """Choose how nodes exchange, with one worker each: as a training on them would."""
    return ("nccl", "gpu") if all(has_gpus) else ("gloo", "cpu")
