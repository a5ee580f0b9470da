"""What a node has, in words: when they change, its inspection is stale."""

import os
import platform
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.agent.devices import are_hidden, discover, gpus_here, may_park, others_on
from coddl.agent.node_resources import own_cores
from coddl.core.pool.records import Device

BUSY_PART: Final = 0.5  # of the cores; other processes than ours use them
CPUINFO: Final = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The devices that workers of a node use, and the words for them."""

    hardware: str
    devices: tuple[Device, ...]
    cores: tuple[int, ...]
    may_share_gpu: bool = True  # False: a GPU admits one process at a time
    notes: tuple[str, ...] = ()  # what makes the figures doubtful

    @property
    def has_gpus(self) -> bool:
        return any(each.gpu is not None for each in self.devices)


def look_at_hardware(slots: int | None) -> NodeHardware:
    """Look at what an agent would find here; `slots`: CPU slots, None for GPUs or all cores."""
    cores = tuple(own_cores())
    gpus = None if slots is not None or are_hidden() else gpus_here()
    found = discover(gpus, slots, len(cores))
    notes = list(found.problems)
    for device in found.devices:
        if gpus is not None and device.gpu and (others := others_on(gpus, device)):
            notes.append(f"GPU {device.index} is in use by {others}: it will seem slower")
    if (load := os.getloadavg()[0]) > BUSY_PART * len(cores):
        notes.append(f"the load is {load:.1f} on {len(cores)} cores: figures will vary")
    return NodeHardware(
        words_for(found.devices, len(cores)),
        found.devices,
        cores,
        may_park(gpus, found.devices),
        tuple(notes),
    )


def words_for(devices: Sequence[Device], cores: int) -> str:
    """Describe the hardware of a node with these devices."""
    return in_words(devices, cores, _cpu_model(), _gpu_driver())


def in_words(devices: Sequence[Device], cores: int, cpu: str, driver: str) -> str:
    """Describe the hardware: GPUs with their driver if they are used, and the CPU."""
    kinds = Counter(each.kind for each in devices if each.gpu is not None)
    words = [f"{count} x {kind}" for kind, count in sorted(kinds.items())]
    words += [f"driver {driver}"] if kinds and driver else []
    return ", ".join([*words, cpu, f"{cores} core{'s' * (cores != 1)}"])


def _cpu_model() -> str:
    with suppress(OSError):
        for line in CPUINFO.read_text(errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return " ".join(value.split())
    return platform.machine() or "CPU"


def _gpu_driver() -> str:
    """Give the version of NVIDIA's driver; empty if there is none."""
    with suppress(Exception):  # whatever NVML raises: the version is not worth an error
        import pynvml  # type: ignore[import-untyped,unused-ignore]

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)
    return ""
