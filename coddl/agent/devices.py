"""The devices of a node: its GPUs, through NVML, or so many places for CPU workers.

CUDA itself is never touched: a process that has done so can't fork workers that use it.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coddl.core.errors import UserError
from coddl.core.pool.records import Device

VISIBLE = "CUDA_VISIBLE_DEVICES"
OTHERS_PART = 0.05  # of its memory; drivers and displays use some of an idle GPU
NONE = ("", "-1", "NoDevFiles")  # as it hides all GPUs


class GpuDriver(Protocol):
    """The GPUs of a machine. Each call may raise `GpuError`."""

    def count(self) -> int: ...
    def about(self, index: int) -> Device:
        """Describe a GPU; its `gpu` is its UUID."""
        ...

    def processes(self, index: int) -> list[int]:
        """Give the numbers of the processes that compute on a GPU, as far as we may see them."""
        ...

    def used_bytes(self, index: int) -> int:
        """Tell how much of a GPU's memory is in use, by any process."""
        ...

    def utilisation(self, index: int) -> float:
        """Tell for which part of the last moments a GPU computed, 0..1."""
        ...

    def is_exclusive(self, index: int) -> bool:
        """Tell whether a GPU admits one process at a time."""
        ...


class GpuError(Exception):
    """A GPU can't be asked."""


class NvmlDriver:
    """The GPUs as NVIDIA's driver tells of them."""

    def __init__(self, nvml: Any) -> None:  # Any: the module has no types
        self._nvml = nvml

    def count(self) -> int:
        return int(self._asked(lambda: self._nvml.nvmlDeviceGetCount()))

    def about(self, index: int) -> Device:
        def look() -> Device:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            if self._has_mig(handle):
                raise GpuError("it is in MIG mode, which is not supported")
            uuid, model = self._nvml.nvmlDeviceGetUUID(handle), self._nvml.nvmlDeviceGetName(handle)
            memory_bytes = int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total)
            return Device(index, _text(model), _text(uuid), memory_bytes)

        found: Device = self._asked(look)
        return found

    def processes(self, index: int) -> list[int]:
        def look() -> list[int]:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
            return [int(each.pid) for each in found]

        pids: list[int] = self._asked(look)
        return pids

    def used_bytes(self, index: int) -> int:
        def look() -> int:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).used)

        used: int = self._asked(look)
        return used

    def utilisation(self, index: int) -> float:
        def look() -> float:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            return float(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) / 100.0

        part: float = self._asked(look)
        return part

    def is_exclusive(self, index: int) -> bool:
        def look() -> bool:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            mode = self._nvml.nvmlDeviceGetComputeMode(handle)
            return bool(mode == self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

        found: bool = self._asked(look)
        return found

    def _has_mig(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except self._nvml.NVMLError:  # a GPU that has no such mode
            return False

    def _asked(self, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except self._nvml.NVMLError as error:
            raise GpuError(f"{error}") from None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def gpus_here(devices: Path = Path("/dev")) -> GpuDriver | None:
    """Reach NVIDIA's driver; None if the machine has no GPU, or they are hidden from us.

    Raises UserError if there is one and the driver can't be asked: CPU slots in its place would be
    a surprise.
    """
    try:
        import pynvml  # type: ignore[import-untyped,unused-ignore]

        pynvml.nvmlInit()
    except ImportError:
        because = "nvidia-ml-py is not installed"
    except pynvml.NVMLError as error:
        because = f"the NVIDIA driver does not answer: {error}"
    else:
        return NvmlDriver(pynvml)
    if any(devices.glob("nvidia[0-9]*")) or shutil.which("nvidia-smi"):
        raise _unusable(because)
    return None


def are_hidden(env: Mapping[str, str] = os.environ) -> bool:
    """Tell whether this process was told to use no GPU."""
    return env.get(VISIBLE, "0").partition(",")[0].strip() in NONE


def _unusable(because: str) -> UserError:
    try_ = "nvidia-smi, which shows what is wrong; or --slots N for CPU workers"
    return UserError("the GPUs of this node can't be used", because, try_)


@dataclass(frozen=True, slots=True)
class DiscoveredDevices:
    """The devices of a node, and what was wrong with others."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...] = ()


def discover(
    gpus: GpuDriver | None,
    slots: int | None,
    cores: int,
    env: Mapping[str, str] = os.environ,
    *,
    slot_ids: Sequence[int] = (),
) -> DiscoveredDevices:
    """Find what jobs may use: `slots` CPU places if that was asked for, else GPUs, else cores.

    `slot_ids` are the numbers that those places have, as an engine has granted them.
    Raises UserError if there are GPUs and none of them can be used.
    """
    if slots is not None:
        if slots < 1:
            raise UserError(
                f"--slots {slots} cannot be used", "--slots must be at least 1", "--slots 4"
            )
        if slot_ids and not len(slot_ids) == len(set(slot_ids)) == slots:
            ids = ",".join(map(str, slot_ids))
            because = f"--slots {slots} needs {slots} different numbers"
            raise UserError(f"--slot-ids {ids} cannot be used", because, "--slots 2 --slot-ids 1,3")
        return DiscoveredDevices(_places(slot_ids or range(slots)))
    if gpus is None or are_hidden(env):
        return DiscoveredDevices(_places(range(cores)))
    found = _visible(gpus, env)
    if not found.devices and found.problems:
        raise _unusable("; ".join(found.problems))
    return found if found.devices else DiscoveredDevices(_places(range(cores)))


def may_park(gpus: GpuDriver | None, devices: Sequence[Device]) -> bool:
    """Tell whether processes may stay on the GPUs of others: a parked one keeps its context."""
    try:
        return gpus is None or not any(gpus.is_exclusive(at.index) for at in devices if at.gpu)
    except GpuError:
        return True  # what can't be asked is as drivers come


def others_on(gpus: GpuDriver, device: Device) -> str:
    """Describe the foreign processes on a GPU that runs none of ours; empty: none were seen.

    Processes in containers and of other users may be hidden from us: the memory they use is not.
    """
    try:
        pids, used_bytes = gpus.processes(device.index), gpus.used_bytes(device.index)
    except GpuError:
        return ""
    if pids:
        return f"process {', '.join(_named(pid) for pid in pids)}"
    if used_bytes > OTHERS_PART * device.memory_bytes:
        used, total = f"{used_bytes / 1e9:.1f}", f"{device.memory_bytes / 1e9:.1f}"
        return f"another user or a container ({used} of {total} GB of its memory)"
    return ""


def _named(pid: int) -> str:
    with suppress(OSError):
        return f"{pid} ({(Path('/proc') / str(pid) / 'comm').read_text().strip()})"
    return str(pid)


def _places(numbers: Sequence[int]) -> tuple[Device, ...]:
    return tuple(Device(number, "cpu") for number in numbers)


def _visible(gpus: GpuDriver, env: Mapping[str, str]) -> DiscoveredDevices:
    """Describe the GPUs that this process may use, in the order it was told them."""
    healthy: dict[int, Device] = {}
    problems: list[str] = []
    try:
        count = gpus.count()
    except GpuError as error:
        return DiscoveredDevices((), (f"GPUs can't be counted: {error}",))
    for index in range(count):
        try:
            healthy[index] = gpus.about(index)
        except GpuError as error:
            problems.append(f"GPU {index} is not used: {error}")
    wanted: Sequence[Device] = list(healthy.values())
    if (visible := env.get(VISIBLE)) is not None:
        wanted, words = _picked(visible, healthy)
        problems += words
    return DiscoveredDevices(tuple(wanted), tuple(problems))


def _picked(visible: str, healthy: Mapping[int, Device]) -> tuple[list[Device], list[str]]:
    """Read the variable as CUDA does: up to the first entry that names no GPU."""
    picked: list[Device] = []
    for word in (each.strip() for each in visible.split(",")):
        match = [d for d in healthy.values() if word == str(d.index) or _is_uuid(word, d)]
        if len(match) != 1:
            return picked, [] if word in NONE else [f"{VISIBLE}: {word} is not a usable GPU"]
        picked += match
    return picked, []


def _is_uuid(word: str, device: Device) -> bool:
    return word.startswith("GPU-") and device.gpu is not None and device.gpu.startswith(word)
