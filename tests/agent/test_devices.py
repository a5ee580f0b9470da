"""Which devices a node has, with a driver made of paper."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coddl.agent.devices import (
    GpuError,
    NvmlDriver,
    discover,
    gpus_here,
    may_park,
    others_on,
)
from coddl.agent.gpu_monitors import STALE_S, ForeignProcessMonitor, GpuUseMonitor, gpu_use_of
from coddl.api.wire import GpuUse
from coddl.core.errors import UserError
from coddl.core.pool.records import Device


class PaperGpus:
    """Some GPUs, of which some are ill."""

    def __init__(
        self, count: int, ill: tuple[int, ...] = (), busy: tuple[int, ...] = (), used_bytes: int = 0
    ) -> None:
        self._count, self._ill, self.busy, self._used_bytes = count, ill, busy, used_bytes

    def count(self) -> int:
        return self._count

    def about(self, index: int) -> Device:
        if index in self._ill:
            raise GpuError("GPU is lost")
        return gpu(index)

    def processes(self, index: int) -> list[int]:
        if index in self._ill:
            raise GpuError("GPU is lost")
        return list(self.busy)

    def used_bytes(self, index: int) -> int:
        assert index < self._count
        return self._used_bytes

    def utilisation(self, index: int) -> float:
        if index in self._ill:
            raise GpuError("GPU is lost")
        return index / 4

    def is_exclusive(self, index: int) -> bool:
        if index in self._ill:
            raise GpuError("GPU is lost")
        return index == 2


def gpu(index: int) -> Device:
    return Device(index, "H200", f"GPU-{index}{index}{index}-abc", 1 << 30)


def cpus(count: int) -> tuple[Device, ...]:
    return tuple(Device(index, "cpu") for index in range(count))


PARKING = {
    "CPU slots": (None, cpus(2), True),
    "GPUs for several processes": (PaperGpus(3), (gpu(0), gpu(1)), True),
    "one of them for one at a time": (PaperGpus(3), (gpu(0), gpu(2)), False),
    "one that does not answer": (PaperGpus(3, ill=(2,)), (gpu(2),), True),
}


@pytest.mark.parametrize(("gpus", "devices", "want"), PARKING.values(), ids=PARKING.keys())
def test_processes_are_parked_where_others_may_use_the_gpu_meanwhile(
    gpus: PaperGpus | None, devices: tuple[Device, ...], want: bool
) -> None:
    assert may_park(gpus, devices) is want


VISIBLE = {
    "all of them": (None, (0, 1, 2), ""),
    "some, in their order": ("2,0", (2, 0), ""),
    "by the beginning of their names": ("GPU-111,GPU-2", (1, 2), ""),
    "up to the first that is none": ("1,-1,2", (1,), ""),
    "one that is not there": ("0,7", (0,), "CUDA_VISIBLE_DEVICES: 7 is not a usable GPU"),
}


@pytest.mark.parametrize(("visible", "want", "problem"), VISIBLE.values(), ids=VISIBLE.keys())
def test_the_gpus_an_agent_may_use(
    visible: str | None, want: tuple[int, ...], problem: str
) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    found = discover(PaperGpus(3), None, 8, env)
    assert found.devices == tuple(gpu(index) for index in want)
    assert found.problems == ((problem,) if problem else ())


def test_a_gpu_that_does_not_answer_is_left_out_with_a_word() -> None:
    found = discover(PaperGpus(2, ill=(0,)), None, 8, {})
    assert found.devices == (gpu(1),)
    assert found.problems == ("GPU 0 is not used: GPU is lost",)


NO_GPUS = {
    "no driver": (None, None, {}, cpus(4)),
    "a driver without GPUs": (PaperGpus(0), None, {}, cpus(4)),
    "GPUs that are hidden": (PaperGpus(2), None, {"CUDA_VISIBLE_DEVICES": ""}, cpus(4)),
    "slots that were asked for": (PaperGpus(2), 3, {}, cpus(3)),
}


@pytest.mark.parametrize(("gpus", "slots", "env", "want"), NO_GPUS.values(), ids=NO_GPUS.keys())
def test_a_node_without_gpus_has_places(
    gpus: PaperGpus | None, slots: int | None, env: dict[str, str], want: tuple[Device, ...]
) -> None:
    assert discover(gpus, slots, 4, env).devices == want


UNUSABLE = {
    "all are ill": (PaperGpus(2, ill=(0, 1)), {}, "GPU 0 is not used: GPU is lost; GPU 1 is"),
    "another one was asked for": (
        PaperGpus(1),
        {"CUDA_VISIBLE_DEVICES": "MIG-1"},
        "CUDA_VISIBLE_DEVICES: MIG-1 is not a usable GPU",
    ),
}


@pytest.mark.parametrize(("gpus", "env", "because"), UNUSABLE.values(), ids=UNUSABLE.keys())
def test_gpus_that_can_not_be_used_do_not_turn_into_cpu_places(
    gpus: PaperGpus, env: dict[str, str], because: str
) -> None:
    with pytest.raises(UserError, match="the GPUs of this node can't be used") as refused:
        discover(gpus, None, 4, env)
    assert refused.value.because.startswith(because)
    assert "--slots" in refused.value.try_
    assert discover(gpus, 3, 4, env).devices == cpus(3), "unless that was asked for"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a driver")
def test_a_driver_that_does_not_answer_is_told_where_there_are_devices(tmp_path: Path) -> None:
    assert gpus_here(tmp_path) is None, "this machine has no GPU"
    (tmp_path / "nvidia0").touch()
    with pytest.raises(UserError, match="the GPUs of this node can't be used") as refused:
        gpus_here(tmp_path)
    assert "--slots" in refused.value.try_


def test_a_node_has_at_least_one_slot() -> None:
    with pytest.raises(UserError, match="--slots 0 cannot be used"):
        discover(None, 0, 4, {})


def test_cpu_slots_have_the_numbers_that_an_engine_gave() -> None:
    granted = discover(None, 2, 8, {}, slot_ids=(3, 1)).devices
    assert granted == (Device(3, "cpu"), Device(1, "cpu"))


@pytest.mark.parametrize("slot_ids", [(1,), (1, 1), (1, 2, 3)])
def test_each_cpu_slot_has_a_number_of_its_own(slot_ids: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="--slots 2 needs 2 different numbers"):
        discover(None, 2, 8, {}, slot_ids=slot_ids)


def test_who_else_uses_a_gpu_is_named_or_known_by_the_memory_it_uses() -> None:
    assert others_on(PaperGpus(1), gpu(0)) == ""
    assert others_on(PaperGpus(1, busy=(1,)), gpu(0)).startswith("process 1 (")
    assert others_on(PaperGpus(1, used_bytes=1 << 28), gpu(0)) == (
        "another user or a container (0.3 of 1.1 GB of its memory)"
    )
    assert others_on(PaperGpus(1, used_bytes=1 << 20), gpu(0)) == "", "as the driver uses"
    assert others_on(PaperGpus(1, ill=(0,)), gpu(0)) == ""


def test_others_block_a_gpu_at_once_at_first_and_when_seen_twice_later() -> None:
    gpus, ours, told = PaperGpus(2, busy=(1,)), {"GPU-111-abc"}, list[dict[int, str]]()
    strangers = ForeignProcessMonitor(
        gpus, (gpu(0), gpu(1)), lambda: ours, lambda said: told.append({**said})
    )
    strangers.look()
    assert [*map(list, told)] == [[0]], "what is ours is not looked at"
    ours.clear()
    strangers.look()
    assert len(told) == 1, "it may have been ours until a moment ago"
    strangers.look()
    assert [*map(list, told)] == [[0], [0, 1]]
    gpus.busy = ()
    strangers.look()
    assert told[2:] == [{}]
    gpus.busy = (1,)
    ours.add("GPU-000-abc")
    strangers.look()
    strangers.look()
    assert [*map(list, told[3:])] == [[1]]


class Driver:
    """As much of NVIDIA's module as is used."""

    class NVMLError(Exception):
        pass

    def __init__(self, name: Callable[[], str | bytes], mig: int | None = None) -> None:
        self._name, self._mig = name, mig

    def nvmlDeviceGetMigMode(self, _handle: int) -> list[int]:
        if self._mig is None:
            raise self.NVMLError("Not Supported")
        return [self._mig, self._mig]

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, _handle: int) -> bytes:
        return b"GPU-1"

    def nvmlDeviceGetName(self, _handle: int) -> str | bytes:
        return self._name()

    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        return handle

    def nvmlDeviceGetMemoryInfo(self, _handle: int) -> "Driver":
        return self

    def nvmlDeviceGetUtilizationRates(self, _handle: int) -> "Driver":
        return self

    total, used, gpu = 99, 7, 25  # bytes, and per cent


def test_the_driver_is_asked_in_its_own_words() -> None:
    gpus = NvmlDriver(Driver(lambda: b"NVIDIA H200"))
    assert gpus.count() == 1
    assert gpus.about(0) == Device(0, "NVIDIA H200", "GPU-1", 99)
    assert gpus.used_bytes(0) == 7
    assert gpus.utilisation(0) == 0.25


def test_what_the_driver_raises_is_told_as_an_error_of_the_gpu() -> None:
    def fail() -> str:
        raise Driver.NVMLError("fell off the bus")

    with pytest.raises(GpuError, match="fell off the bus"):
        NvmlDriver(Driver(fail)).about(0)


def test_a_gpu_that_is_cut_into_instances_can_not_be_used() -> None:
    name: Callable[[], str] = lambda: "NVIDIA H200"  # noqa: E731
    assert NvmlDriver(Driver(name, mig=0)).about(0).gpu == "GPU-1"
    assert [NvmlDriver(Driver(name)).is_exclusive(index) for index in (0, 3)] == [False, True]
    with pytest.raises(GpuError, match="MIG"):
        NvmlDriver(Driver(name, mig=1)).about(0)


def test_what_gpus_do_is_told_of_those_that_answer_while_it_is_fresh() -> None:
    now_s = 100.0
    gpus = PaperGpus(3, ill=(1,), used_bytes=7)
    monitor = GpuUseMonitor(gpus, (gpu(0), gpu(1), gpu(2)), lambda: now_s)
    assert monitor.newest() == {}
    monitor.look()
    assert monitor.newest() == {0: GpuUse(0.0, 7), 2: GpuUse(0.5, 7)}
    now_s += STALE_S + 1.0
    assert monitor.newest() == {}, "the driver hangs: what it said is no longer true"


def test_cpu_slots_tell_no_use_of_gpus() -> None:
    assert gpu_use_of(None, cpus(2))() == {}
