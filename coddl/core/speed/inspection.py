"""What the hardware of a pool was measured to do, independent of any training.

An all-reduce of x bytes among n workers is a ring of 2(n-1) messages, in which each worker sends
2(n-1)/n of the bytes:

    t(n, x) = call + 2(n-1) latency + 2(n-1)/n x / bandwidth

The three are fitted to a sweep over sizes and numbers of workers, by least squares on relative
errors, none of them below 0.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from coddl.core.errors import UserError
from coddl.core.speed.collectives import ring_s
from coddl.core.speed.nnls import nnls

LinkClass = Literal["gpu", "node", "cluster"]  # two workers share a GPU; a node; only the network

LINK_CLASSES: Final[tuple[LinkClass, ...]] = get_args(LinkClass)
VERSION: Final = 1


class ExchangeTime(NamedTuple):
    """How long an all-reduce took."""

    workers: int
    bytes_: int
    seconds: float


class SendTime(NamedTuple):
    """How long a message from one worker to another took."""

    bytes_: int
    seconds: float


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a link does, and the times that this was fitted to."""

    gb_s: float  # of a ring all-reduce: bytes that each worker sends over the link, a second
    latency_us: float  # of one of its 2(n-1) messages
    call_us: float  # of a collective by itself, however many workers
    backend: str  # "gloo", "nccl"
    measured: tuple[ExchangeTime, ...] = ()
    sent: tuple[SendTime, ...] = ()  # from one worker to another, as a check

    def __post_init__(self) -> None:
        if not 1e-9 <= self.gb_s <= 1e9:
            raise ValueError("a bandwidth is out of range")
        if not (0.0 <= self.latency_us <= 1e12 and 0.0 <= self.call_us <= 1e12):
            raise ValueError("a latency is out of range")

    def all_reduce_s(self, workers: int, bytes_: float) -> float:
        """Seconds of an all-reduce of so many bytes."""
        return ring_s(workers, bytes_, self)

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of workers it was measured with."""
        return tuple(sorted({each.workers for each in self.measured}))

    def fit_errors(self) -> list[float]:
        """How far the fit is from each measured time, as a part of it; below 0: too short."""
        return [self.all_reduce_s(n, x) / seconds - 1.0 for n, x, seconds in self.measured]

    def as_data(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            "gb_s": self.gb_s,
            "latency_us": self.latency_us,
            "call_us": self.call_us,
            "backend": self.backend,
            "measured": [list(each) for each in self.measured],
            "sent": [list(each) for each in self.sent],
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Read what `as_data` wrote; raises KeyError, TypeError or ValueError."""
        return cls(
            gb_s=_positive(data["gb_s"]),
            latency_us=_number(data["latency_us"]),
            call_us=_number(data["call_us"]),
            backend=str(data["backend"]),
            measured=tuple(
                ExchangeTime(int(n), int(bytes_), _positive(seconds))
                for n, bytes_, seconds in data.get("measured", ())
            ),
            sent=tuple(
                SendTime(int(bytes_), _positive(seconds))
                for bytes_, seconds in data.get("sent", ())
            ),
        )


@dataclass(frozen=True, slots=True)
class Inspection:
    """What one node was measured to do."""

    hardware: str  # GPU name and count, CPU model, driver: what makes it stale
    links: Mapping[LinkClass, LinkSpeed]
    update_gb_s: Mapping[str, float]  # parameters+state that Adam updates a second: "gpu", "cpu"
    copy_gb_s: Mapping[str, float]  # "to_host", "from_host" (GPU only), pinned
    suspend_s: float | None = None  # 1 GB leaves a GPU for host memory and comes back

    def as_data(self) -> dict[str, Any]:
        """Give it for JSON."""
        return {
            "version": VERSION,
            "hardware": self.hardware,
            "links": {name: link.as_data() for name, link in self.links.items()},
            "update_gb_s": dict(self.update_gb_s),
            "copy_gb_s": dict(self.copy_gb_s),
            "suspend_s": self.suspend_s,
        }

    @classmethod
    def from_data(cls, data: Any) -> Self:  # Any: JSON, of any file
        """Read what `as_data` wrote; raises UserError for what is no inspection."""
        try:
            if data["version"] != VERSION:
                raise ValueError(f"its version is {data['version']}, and {VERSION} is known")
            suspend_s = data["suspend_s"]
            return cls(
                hardware=str(data["hardware"]),
                links={
                    name: LinkSpeed.from_data(data["links"][name])
                    for name in LINK_CLASSES
                    if name in data["links"]
                },
                update_gb_s={str(k): _positive(v) for k, v in data["update_gb_s"].items()},
                copy_gb_s={str(k): _positive(v) for k, v in data["copy_gb_s"].items()},
                suspend_s=None if suspend_s is None else _number(suspend_s),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            because = f"{error} is missing" if isinstance(error, KeyError) else f"{error}"
            raise _no_inspection(because) from None


def read_inspection(text: str) -> Inspection:
    """Read an inspection from JSON; raises UserError for what is none."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_inspection(f"it is not JSON: {error}") from None
    return Inspection.from_data(data)


def fitted_link(
    measured: Iterable[ExchangeTime],
    backend: str,
    *,
    sent: Sequence[SendTime] = (),
    call_s: float | None = None,
) -> LinkSpeed:
    """Fit a link to a sweep of at least two sizes.

    A sweep with one number of workers can't tell the call from the messages: then `call_s`, of
    another link with the same backend, is taken as given. Without it both get half of the time.
    """
    times = tuple(sorted(measured))
    workers, bytes_, seconds = (np.array(column, np.float64) for column in zip(*times, strict=True))
    messages = 2.0 * (workers - 1.0)
    terms = np.stack([np.ones_like(seconds), messages, messages / workers * bytes_], axis=1)
    terms /= seconds[:, None]
    known_s = 0.0
    if call_s is not None and len(set(workers)) == 1:
        known_s = min(call_s, float(seconds.min()))
        terms[:, 0] = 0.0
    call, latency, per_byte = nnls(terms, 1.0 - known_s / seconds)
    if per_byte <= 0.0:  # noise hides it: as fast as the fastest exchange
        per_byte = float((seconds / (messages / workers * bytes_)).min())
    return LinkSpeed(
        gb_s=1e-9 / float(per_byte),
        latency_us=1e6 * float(latency),
        call_us=1e6 * (known_s + float(call)),
        backend=backend,
        measured=times,
        sent=tuple(sorted(sent)),
    )


def fitted_send(sent: Iterable[SendTime]) -> tuple[float, float]:
    """Fit GB/s and microseconds per message to messages of at least two sizes."""
    bytes_, seconds = (np.array(column, np.float64) for column in zip(*sent, strict=True))
    terms = np.stack([np.ones_like(seconds), bytes_], axis=1) / seconds[:, None]
    latency, per_byte = nnls(terms, np.ones_like(seconds))
    if per_byte <= 0.0:
        per_byte = float((seconds / bytes_).min())
    return 1e-9 / float(per_byte), 1e6 * float(latency)


def median_error(link: LinkSpeed) -> float:
    """Give the median of the errors of the fit, without their signs."""
    return statistics.median(abs(each) for each in link.fit_errors())


def _number(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number) or number < 0.0:
        raise ValueError(f"{value} is not a number of 0 or more")
    return number


def _positive(value: Any) -> float:
    if (number := _number(value)) == 0.0:
        raise ValueError("0 is not a number above 0")
    return number


def _no_inspection(because: str) -> UserError:
    return UserError("this is no inspection of a machine", because, "coddl inspect --save FILE")
