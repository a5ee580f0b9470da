"""What one worker measures of a training: enough to estimate its speed on any GPUs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from coddl.core.errors import UserError

VERSION: Final = 1
ENTRIES_MAX: Final = 1024  # slices, or buckets
COUNT_MAX: Final = 1 << 53  # samples, or bytes
SECONDS_MIN, SECONDS_MAX = 1e-9, 1e6  # of a pass


class SliceTime(NamedTuple):
    """How long a pass over a number of samples takes on one GPU.

    A pass takes no less than the host needs to launch its kernels, however few samples it has.
    """

    samples: int
    forward_s: float
    backward_s: float
    forward_host_s: float = 0.0  # of the host; 0: it is not known, or is the same, as on a CPU
    backward_host_s: float = 0.0


class GradientBucket(NamedTuple):
    """Gradients that are sent together."""

    bytes_: int
    ready: float  # the part of the backward pass after which they are complete, in (0, 1]


class SliceMemory(NamedTuple):
    """How much GPU memory a pass over a number of samples needs, or the update after it."""

    samples: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class TrainingProfile:
    """A training as one worker has measured it."""

    device: str  # "NVIDIA H200", "cpu"
    batch: int  # samples of an update, over all workers
    slices: tuple[SliceTime, ...]  # by samples, ascending; at least one
    update_s: float  # of the optimizer
    other_s: float  # other parts of an update: zero_grad, logging, what the script does
    data_s: float  # waiting for the loader, in an update
    buckets: tuple[GradientBucket, ...]  # in the order in which they are sent
    memory: tuple[SliceMemory, ...] = ()  # of passes; where no update is known, of both
    update_memory: tuple[SliceMemory, ...] = ()  # of updates
    state_bytes: int = 0
    largest_tensor_bytes: int = 0
    virtual_nodes: int | None = None  # of a strict training
    signature: str = ""  # of model, optimizer and batch: identifies equal trainings

    def __post_init__(self) -> None:
        """Refuse what no training can have: it comes from scripts, and decisions rest on it."""
        samples = [self.batch, *(each.samples for each in self.slices)]
        memory = [*self.memory, *self.update_memory]
        samples += [each.samples for each in memory]
        counts = [self.state_bytes, self.largest_tensor_bytes, self.virtual_nodes or 1]
        counts += [each.bytes_ for each in self.buckets]
        counts += [each.peak_bytes for each in memory]
        seconds = [self.update_s, self.other_s, self.data_s]
        seconds += [half for each in self.slices for half in each[1:]]
        lengths = len(self.slices), len(memory), len(self.buckets)
        if not self.slices or max(lengths) > ENTRIES_MAX:
            raise ValueError(f"a profile has 1 to {ENTRIES_MAX} slices")
        if min(samples) < 1 or min(counts) < 0 or max(*samples, *counts) > COUNT_MAX:
            raise ValueError("a number of samples or bytes is out of range")
        if not all(0.0 <= each <= SECONDS_MAX for each in seconds):
            raise ValueError("a time is out of range")
        if min(each.forward_s + each.backward_s for each in self.slices) < SECONDS_MIN:
            raise ValueError("a pass takes some time")
        if not all(0.0 < each.ready <= 1.0 for each in self.buckets):
            raise ValueError("a bucket is ready in the backward pass")

    def as_data(self) -> dict[str, Any]:  # Any: JSON
        """Return it for programs."""
        return {
            "version": VERSION,
            "device": self.device,
            "batch": self.batch,
            "slices": [each._asdict() for each in self.slices],
            "update_s": self.update_s,
            "other_s": self.other_s,
            "data_s": self.data_s,
            "buckets": [{"bytes": each.bytes_, "ready": each.ready} for each in self.buckets],
            "memory": [each._asdict() for each in self.memory],
            "update_memory": [each._asdict() for each in self.update_memory],
            "state_bytes": self.state_bytes,
            "largest_tensor_bytes": self.largest_tensor_bytes,
            "virtual_nodes": self.virtual_nodes,
            "signature": self.signature,
        }

    @classmethod
    def from_data(cls, data: Any) -> Self:  # Any: whatever a file holds
        """Read what `as_data` gave; raises UserError for what is no profile."""
        try:
            return cls._read(data)
        except KeyError as missing:
            raise _refusal(f"it has no {missing}") from None
        except (AttributeError, TypeError, ValueError) as error:
            raise _refusal(str(error)) from None

    @classmethod
    def _read(cls, data: Mapping[str, Any]) -> Self:
        if (version := data["version"]) != VERSION:
            raise ValueError(f"its version is {version!r}, not {VERSION}")
        slices = [
            SliceTime(
                _count(e["samples"], 1),
                *(_seconds(e[half]) for half in ("forward_s", "backward_s")),
                *(_seconds(e.get(half, 0.0)) for half in ("forward_host_s", "backward_host_s")),
            )
            for e in data["slices"]
        ]
        if not slices:
            raise ValueError("it has no slices")
        nodes = data.get("virtual_nodes")
        return cls(
            device=str(data["device"]),
            batch=_count(data["batch"], 1),
            slices=tuple(sorted(slices)),
            update_s=_seconds(data["update_s"]),
            other_s=_seconds(data["other_s"]),
            data_s=_seconds(data["data_s"]),
            buckets=tuple(
                GradientBucket(_count(e["bytes"]), _part(e["ready"])) for e in data["buckets"]
            ),
            memory=_memory(data.get("memory", ())),
            update_memory=_memory(data.get("update_memory", ())),
            state_bytes=_count(data.get("state_bytes", 0)),
            largest_tensor_bytes=_count(data.get("largest_tensor_bytes", 0)),
            virtual_nodes=None if nodes is None else _count(nodes, 1),
            signature=str(data.get("signature", "")),
        )


def _memory(data: Any) -> tuple[SliceMemory, ...]:
    return tuple(SliceMemory(_count(e["samples"], 1), _count(e["peak_bytes"])) for e in data)


def _refusal(because: str) -> UserError:
    return UserError(
        "this is no profile of a training",
        because,
        "coddl profile JOB -o json > profile.json, or coddl run --profile profile.json train.py",
    )


def _count(value: Any, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{value!r} is no whole number of at least {least}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is no number of seconds")
    if not math.isfinite(value) or value < 0.0:
        raise ValueError(f"{value!r} is no number of seconds")
    return float(value)


def _part(value: Any) -> float:
    if not 0.0 < (part := _seconds(value)) <= 1.0:
        raise ValueError(f"{value!r} is no part of a backward pass: above 0, at most 1")
    return part
