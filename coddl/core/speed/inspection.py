"""What the hardware of a pool was measured to do, independent of any training.

An all-reduce of x bytes among n workers is a ring of 2(n-1) messages, in which each worker sends
2(n-1)/n of the bytes:

    t(n, x) = call + 2(n-1) latency + 2(n-1)/n x / bandwidth

The three are fitted to a sweep over sizes and numbers of workers, by least squares on relative
errors, none of them below 0.

No link is quite like that: networks let short bursts pass faster than they let long ones, latencies
hide behind other pieces of long messages, caches are small. So the sweep also gives factors on the
formula: measured by fitted, for each number of workers and size, less what may well be noise (James
and Stein, 1961). Between two of them a factor is interpolated in the logarithms of all; beyond the
outermost it stays what it is there. Fewer bytes among fewer workers take no longer: where they did,
something else has held them up, and the shorter time counts.
"""

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np

from coddl.core.errors import UserError
from coddl.core.speed.collectives import ring_s
from coddl.core.speed.nnls import nnls

LinkClass = Literal["gpu", "node", "cluster"]  # two workers share a GPU; a node; only the network

LINK_CLASSES: Final[tuple[LinkClass, ...]] = get_args(LinkClass)
VERSION: Final = 1
FACTOR_MIN, FACTOR_MAX = 1e-3, 1e3
FACTORS_MAX: Final = 1024
NOISE_SD: Final = 0.07  # of a time in a sweep, as a part of it


class ExchangeTime(NamedTuple):
    """How long an all-reduce took."""

    workers: int
    bytes_: int
    seconds: float


class SendTime(NamedTuple):
    """How long a message from one worker to another took."""

    bytes_: int
    seconds: float


class ExchangeFactor(NamedTuple):
    """What an all-reduce takes, as a multiple of what the formula says."""

    workers: int
    bytes_: int
    factor: float


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """What a link does, and the times that this was fitted to."""

    gb_s: float  # of a ring all-reduce: bytes that each worker sends over the link, a second
    latency_us: float  # of one of its 2(n-1) messages
    call_us: float  # of a collective by itself, however many workers
    backend: str  # "gloo", "nccl"
    measured: tuple[ExchangeTime, ...] = ()
    sent: tuple[SendTime, ...] = ()  # from one worker to another, as a check
    factors: tuple[ExchangeFactor, ...] = ()  # by workers, then bytes, ascending

    def __post_init__(self) -> None:
        if not 1e-9 <= self.gb_s <= 1e9:
            raise ValueError("a bandwidth is out of range")
        if not (0.0 <= self.latency_us <= 1e12 and 0.0 <= self.call_us <= 1e12):
            raise ValueError("a latency is out of range")
        factors = [each.factor for each in self.factors]
        if len(factors) > FACTORS_MAX or not all(FACTOR_MIN <= x <= FACTOR_MAX for x in factors):
            raise ValueError("a factor is out of range")
        if not all(each.workers > 1 and each.bytes_ > 0 for each in self.factors):
            raise ValueError("a factor is of no exchange")

    def factor(self, workers: int, bytes_: float) -> float:
        """How many times as long an all-reduce takes as the formula says."""
        rows: dict[int, list[tuple[float, float]]] = {}
        for each in self.factors:
            rows.setdefault(each.workers, []).append((each.bytes_, each.factor))
        return _between(workers, [(n, _between(bytes_, row)) for n, row in rows.items()])

    def all_reduce_s(self, workers: int, bytes_: float) -> float:
        """Seconds of an all-reduce of `bytes_` bytes."""
        return ring_s(workers, bytes_, self)

    @property
    def workers(self) -> tuple[int, ...]:
        """The numbers of workers it was measured with."""
        return tuple(sorted({each.workers for each in self.measured}))

    def fit_errors(self) -> list[float]:
        """How far the formula is from each measured time, as a part of it; below 0: too short."""
        line = replace(self, factors=())
        return [line.all_reduce_s(n, x) / seconds - 1.0 for n, x, seconds in self.measured]

    def as_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "gb_s": self.gb_s,
            "latency_us": self.latency_us,
            "call_us": self.call_us,
            "backend": self.backend,
            "measured": [list(each) for each in self.measured],
            "sent": [list(each) for each in self.sent],
            "factors": [list(each) for each in self.factors],
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
            factors=tuple(
                sorted(
                    ExchangeFactor(int(n), int(bytes_), _positive(factor))
                    for n, bytes_, factor in data.get("factors", ())
                )
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
        """Return it for JSON."""
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
    columns = zip(*_undisturbed(times), strict=True)
    workers, bytes_, seconds = (np.array(column, np.float64) for column in columns)
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
    line = LinkSpeed(
        gb_s=1e-9 / float(per_byte),
        latency_us=1e6 * float(latency),
        call_us=1e6 * (known_s + float(call)),
        backend=backend,
        measured=times,
        sent=tuple(sorted(sent)),
    )
    return replace(line, factors=_factors(line))


def fitted_send(sent: Iterable[SendTime]) -> tuple[float, float]:
    """Fit GB/s and microseconds per message to messages of at least two sizes."""
    bytes_, seconds = (np.array(column, np.float64) for column in zip(*sent, strict=True))
    terms = np.stack([np.ones_like(seconds), bytes_], axis=1) / seconds[:, None]
    latency, per_byte = nnls(terms, np.ones_like(seconds))
    if per_byte <= 0.0:
        per_byte = float((seconds / bytes_).min())
    return 1e-9 / float(per_byte), 1e6 * float(latency)


def median_error(link: LinkSpeed) -> float:
    """Return the median of the errors of the fit, without their signs."""
    return statistics.median(abs(each) for each in link.fit_errors())


def _undisturbed(times: Sequence[ExchangeTime]) -> list[ExchangeTime]:
    """Cut times that are longer than that of more bytes among more workers, by more than noise."""
    found = []
    for each in times:
        least_s = min(
            other.seconds
            for other in times
            if other.workers >= each.workers and other.bytes_ >= each.bytes_
        )
        is_held_up = each.seconds > least_s * (1.0 + 3.0 * NOISE_SD)
        found.append(each._replace(seconds=least_s) if is_held_up else each)
    return found


def _factors(line: LinkSpeed) -> tuple[ExchangeFactor, ...]:
    """Return by what the sweep is off from the formula.

    What all numbers of workers have in common at a size is less likely to be noise than the rest.
    """
    logs: dict[int, dict[int, float]] = {}  # by bytes, then workers
    for workers, bytes_, seconds in _undisturbed(line.measured):
        ratio = seconds / line.all_reduce_s(workers, bytes_)
        logs.setdefault(bytes_, {})[workers] = math.log(ratio)
    found = []
    for bytes_, of_size in logs.items():
        common = statistics.median(of_size.values())
        sure = _less_noise(common, NOISE_SD / math.sqrt(len(of_size)))
        for workers, log_ratio in of_size.items():
            own = _less_noise(log_ratio - common, NOISE_SD)
            factor = min(max(math.exp(sure + own), FACTOR_MIN), FACTOR_MAX)
            found.append(ExchangeFactor(workers, bytes_, factor))
    return tuple(sorted(found))


def _less_noise(value: float, sd: float) -> float:
    """Shrink a value towards 0: to 0 if it is no more than noise, hardly if it is much more."""
    return value * max(0.0, 1.0 - (sd / value) ** 2) if value else 0.0


def _between(at: float, points: Sequence[tuple[float, float]]) -> float:
    """Interpolate in the logarithms of both; 1 where there are no points."""
    if not points:
        return 1.0
    above = bisect_left(points, at, key=lambda each: each[0])
    if above in (0, len(points)):
        return points[min(above, len(points) - 1)][1]
    (low, less), (high, more) = points[above - 1], points[above]
    part = math.log(at / low) / math.log(high / low)
    return float(less ** (1.0 - part) * more**part)


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
