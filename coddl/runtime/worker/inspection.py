"""What the passes of a training cost, learned from some of the first, at next to no cost.

A timed pass is a row of marks; what lies between two of them is one phase:

    batch handed out | forward | backward | exchange | other | update | other | data | next batch

On a GPU marks are events in its stream, read when it has come to them: nothing waits. So the time
of a phase is what the GPU's work is late by because of it: a loader that keeps up costs nothing.
The host's time for it is recorded, too: no pass is shorter, however few samples it has. That
is known of passes at whose begin the GPU had nothing left to do: in others the host may have waited
for it, as a blocking copy of the next batch does.
A few timed passes also mark when backward has completed each bucket of gradients, as other workers
would be sent them. Only what the script does by itself is timed: no pass is run for it, and slices
have the sizes that occur.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from coddl.runtime.wire import Message
from coddl.runtime.worker.backward import BackwardObserver

WARM_UP: Final = 4  # passes in a group, before one is timed
PASSES: Final = 12  # that are timed, of the largest slice
PASSES_MIN: Final = (
    3  # of others, as of the last batch of an epoch, and of a training that is short
)
EARLY_S: Final = (
    2.0  # of timed passes, after which the first of them are reported: others wait for it
)
SCHEDULES: Final = 3  # passes in which gradients are watched
SIZES_MAX: Final = 8
BUCKETS_MAX: Final = 64

Phase = Literal["forward", "backward", "exchange", "update", "other", "data"]


class GpuMark(NamedTuple):
    """A moment in the work of a GPU, and when the host asked for it."""

    event: torch.cuda.Event
    host_s: float


Mark = float | GpuMark
Buckets = Callable[[], list[list[Tensor]]]  # parameters whose gradients are sent together, in order
Ready = tuple[int, float]  # bytes of a bucket, and the part of backward after which it is ready
Schedule = list[Ready]
BucketMarks = list[tuple[int, Mark | None]]  # of those that got a gradient: bytes, when complete


class PassClock:
    """Marks moments, on the GPU in the order of its work."""

    def __init__(self, device: torch.device) -> None:
        self._is_gpu = device.type == "cuda"

    def mark(self) -> Mark | None:
        """Mark this moment; None while a CUDA graph is captured, which no event must be part of."""
        if not self._is_gpu:
            return time.monotonic()
        if torch.cuda.is_current_stream_capturing():
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return GpuMark(event, time.monotonic())

    def host_s(self) -> float:
        """Return the time of the host."""
        return time.monotonic()

    def is_past(self, mark: Mark) -> bool:
        """Return whether the GPU has come there."""
        return isinstance(mark, float) or mark.event.query()

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Return the time between two marks that are past."""
        if isinstance(begin, float) or isinstance(end, float):
            assert isinstance(begin, float)
            assert isinstance(end, float)
            return end - begin
        return float(begin.event.elapsed_time(end.event)) * 1e-3

    def host_seconds(self, begin: Mark, end: Mark) -> float:
        """Return the host's time from one mark to another if there is a GPU; else 0."""
        if isinstance(begin, float) or isinstance(end, float):
            return 0.0
        return end.host_s - begin.host_s


class BucketWatch:
    """Marks when each bucket of gradients is complete, in the backwards of some passes."""

    def __init__(self, buckets: Sequence[Sequence[Tensor]], clock: PassClock) -> None:
        self._backwards: list[BucketMarks] = []  # of this pass
        self._clock = clock
        self._bytes = [sum(p.nbytes for p in bucket) for bucket in buckets]
        self._sizes = [len(bucket) for bucket in buckets]
        self._number = {id(p): i for i, bucket in enumerate(buckets) for p in bucket}
        self._got: set[int] = set()
        self._missing: list[int] = []
        self._marks: list[Mark | None] = []
        self._hooks: list[RemovableHandle] = [
            p.register_post_accumulate_grad_hook(self._on_gradient) for b in buckets for p in b
        ]

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

    def begin_pass(self) -> "list[BucketMarks]":
        """Return the list that the marks of this pass will be in, backward by backward."""
        self._backwards, self._missing = [], []
        return self._backwards

    def begin(self) -> None:
        """Expect a backward."""
        self._got = set()
        self._missing, self._marks = list(self._sizes), [None] * len(self._sizes)

    def end(self) -> None:
        """Keep what the backward has shown."""
        used = {self._number[each] for each in self._got}
        told = zip(self._bytes, self._marks, strict=True)
        self._backwards.append([each for i, each in enumerate(told) if i in used])

    def _on_gradient(self, parameter: Tensor) -> None:
        if not self._missing or id(parameter) in self._got:
            return
        self._got.add(id(parameter))
        number = self._number[id(parameter)]
        self._missing[number] -= 1
        if not self._missing[number]:
            self._marks[number] = self._clock.mark()


@dataclass(slots=True)
class TimedPass:
    """A pass: what its phases end with, in order."""

    samples: int
    begin: Mark
    ends: list[tuple[Phase, Mark]] = field(default_factory=list)
    buckets: list[BucketMarks] = field(default_factory=list)  # by backward, if they were watched
    has_backward: bool = False  # that we know of
    kept_up: bool = False  # the GPU had come to the end of the pass before when this one began

    @property
    def end(self) -> Mark:
        """The last mark there is."""
        return self.ends[-1][1] if self.ends else self.begin

    def seconds(self, between: Callable[[Mark, Mark], float]) -> dict[Phase, float]:
        """Return the time in each phase, by a clock's measure of the time between two marks."""
        found: dict[Phase, float] = {}
        at = self.begin
        for phase, end in self.ends:
            found[phase] = found.get(phase, 0.0) + between(at, end)
            at = end
        return found

    def schedule(self, clock: PassClock) -> Schedule:
        """Return the buckets in the order in which they are sent, and when each can be.

        They are sent in order, the last one of a backward when that has ended.
        """
        if not self.buckets:
            return []
        marks = [self.begin, *(end for _, end in self.ends)]
        spans = [(marks[i], end) for i, (phase, end) in enumerate(self.ends) if phase == "backward"]
        total_s = sum(clock.seconds(*span) for span in spans)
        found: Schedule = []
        before_s = ready_s = 0.0
        for (begin, end), buckets in zip(spans, self.buckets, strict=False):
            end_s = before_s + clock.seconds(begin, end)
            for number, (bytes_, mark) in enumerate(buckets):
                is_last = mark is None or number == len(buckets) - 1
                own_s = end_s if is_last or mark is None else before_s + clock.seconds(begin, mark)
                ready_s = min(end_s, max(ready_s, own_s))
                found.append((bytes_, ready_s / total_s if total_s else 1.0))
            before_s = end_s
        return found


class PassSeconds(NamedTuple):
    """The time in each phase of a pass, and the host's time for it if there is a GPU."""

    all: dict[Phase, float]
    host: dict[Phase, float] | None  # None: not known


class PassInspector(BackwardObserver):
    """Times passes until it knows what they cost; then it costs nothing.

    `observe` registers the observer of backwards, or none. `tell` receives the results: once for
    the first size of slices, and again when another one has been measured; None: nothing is timed.
    Without `overlap`, gradients are sent after backward.
    """

    def __init__(
        self,
        clock: PassClock,
        buckets: Buckets,
        observe: Callable[[BackwardObserver | None], None],
        tell: Callable[[Message], None] | None,
        *,
        overlap: bool = True,
    ) -> None:
        self.overlap = overlap
        self._is_on = tell is not None and os.environ.get("CODDL_INSPECT") != "0"
        self._clock = clock
        self._buckets = buckets
        self._observe = observe
        self._tell = tell or (lambda _: None)
        self._is_apt = self._is_on
        self._passes = 0  # in this group
        self._settled: int | None = None  # a size of which nothing more is to be learned
        self._now: TimedPass | None = None
        self._in_backward = False
        self._timed: list[TimedPass] = []
        self._counts: dict[int, int] = {}  # by samples: passes that were timed, or tried to
        self._watch: BucketWatch | None = None
        self._watched = 0  # passes
        self._is_due = False  # there are news, once the GPU has come to their end
        self._has_told = False
        self._since_s: float | None = None  # on the host: when a pass was timed first

    def regroup(self, *, is_apt: bool = True) -> None:
        """Take note of another group; `is_apt`: what workers wait for is no part of a phase."""
        self._drop()
        self._let_go()
        self._is_apt, self._passes, self._settled = is_apt and self._is_on, 0, None

    def begin(self, samples: int) -> None:
        """Take note that a pass begins: its batch is there."""
        if samples == self._settled and self._now is None and not self._is_due:
            return
        kept_up = self._now is not None and self._clock.is_past(self._now.end)
        if self._now is not None:
            self._end("data")
        if self._is_due:
            self._tell_news()
        self._passes += 1
        if not self._wants(samples):
            if self._passes > WARM_UP and not self._is_due:
                self._settled = samples
            return
        if (now := self._clock.mark()) is None:
            return
        self._now, self._in_backward = TimedPass(samples, now, kept_up=kept_up), False
        self._since_s = self._clock.host_s() if self._since_s is None else self._since_s
        if self.overlap and self._watched < SCHEDULES:
            self._watch = self._watch or BucketWatch(self._buckets(), self._clock)
            self._now.buckets = self._watch.begin_pass()
        self._observe(self)

    def mark(self, phase: Phase) -> None:
        """Take note that a phase ends; what an optimizer does within backward is a part of that."""
        if self._now is None or self._in_backward:
            return
        if (mark := self._clock.mark()) is None:
            self._drop()
            return
        self._now.ends.append((phase, mark))

    def begin_backward(self) -> None:
        self.mark("forward")
        if self._now is not None:
            self._in_backward = True
            if self._watch is not None:
                self._watch.begin()

    def end_backward(self) -> None:
        self._in_backward = False
        self.mark("backward")
        if self._now is not None:
            self._now.has_backward = True
            if self._watch is not None:
                self._watch.end()

    def end_exchange(self) -> None:
        self.mark("exchange")

    def rest(self) -> None:
        """Leave out what follows, as an evaluation, up to the next pass."""
        self._end(None)

    def finish(self) -> None:
        """Report what is known at the end of a training that was too short for more."""
        self._end(None)
        self._let_go()
        self._timed = [each for each in self._timed if self._clock.is_past(each.end)]
        if self._is_due or not self._has_told:
            self._tell_news()

    def _wants(self, samples: int) -> bool:
        if not self._is_apt or self._passes <= WARM_UP or samples < 1:
            return False
        if (count := self._counts.get(samples)) is None:
            return len(self._counts) < SIZES_MAX
        return count < self._needed(samples)

    def _needed(self, samples: int) -> int:
        return PASSES if samples == max(self._counts) else PASSES_MIN

    def _end(self, phase: Phase | None) -> None:
        """End the pass that is timed, if one is."""
        if phase is not None:
            self.mark(phase)
        if (ended := self._now) is None:
            return
        self._drop()
        samples = ended.samples
        self._counts[samples] = self._counts.get(samples, 0) + 1
        self._is_due |= self._counts[samples] == self._needed(samples) or self._is_slow(samples)
        if ended.has_backward:
            self._timed.append(ended)
            self._watched += bool(ended.buckets)
            if self._watched == SCHEDULES:
                self._let_go()

    def _is_slow(self, samples: int) -> bool:
        """Return whether few passes must do for now: the pool waits for them to let a job grow."""
        if self._has_told or self._since_s is None or self._counts[samples] < PASSES_MIN:
            return False
        return self._clock.host_s() - self._since_s >= EARLY_S

    def _drop(self) -> None:
        if self._now is not None:
            self._observe(None)
            self._now = None

    def _let_go(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _tell_news(self) -> None:
        if self._timed and not self._clock.is_past(self._timed[-1].end):
            return
        self._is_due = False
        times: dict[int, list[PassSeconds]] = {}
        try:
            for timed in self._timed:
                host = timed.seconds(self._clock.host_seconds) if timed.kept_up else None
                own = PassSeconds(timed.seconds(self._clock.seconds), host)
                times.setdefault(timed.samples, []).append(own)
        except RuntimeError:  # of a script with CUDA streams of its own: the marks have no order
            self._is_on = False
            self.regroup()
            return
        known = {n: times[n] for n in sorted(times) if len(times[n]) >= PASSES_MIN}
        if known:
            self._has_told = True
            self._tell(self._measured(known))

    def _measured(self, known: dict[int, list[PassSeconds]]) -> Message:
        times = [each.all for of_size in known.values() for each in of_size]
        return {
            "slices": [_slice(samples, of_size) for samples, of_size in known.items()],
            "update_s": _rounded(_usual([t.get("update", 0.0) for t in times])),
            "other_s": _rounded(_usual([t.get("other", 0.0) for t in times])),
            # Loader processes bring several batches at once: most passes wait for none.
            "data_s": _rounded(_mean_wait([t["data"] for t in times if "data" in t])),
            "buckets": [
                {"bytes": bytes_, "ready": round(ready, 4)} for bytes_, ready in self._schedule()
            ],
        }

    def _schedule(self) -> Schedule:
        """Return the buckets, with medians of when they were ready."""
        found = [each for timed in self._timed if (each := timed.schedule(self._clock))]
        alike = [each for each in found if len(each) == len(found[-1])]
        if not alike:
            return [(sum(p.nbytes for p in bucket), 1.0) for bucket in self._buckets()]
        times = [median(ready for _, ready in column) for column in zip(*alike, strict=True)]
        usual = [
            (bytes_, min(1.0, max(1e-4, ready)))
            for (bytes_, _), ready in zip(alike[-1], times, strict=True)
        ]
        while len(usual) > BUCKETS_MAX:
            usual = [_joined(usual[i : i + 2]) for i in range(0, len(usual), 2)]
        return usual


def _slice(samples: int, passes: Sequence[PassSeconds]) -> Message:
    hosts = [each.host for each in passes if each.host is not None]
    if 2 * len(hosts) < len(passes):  # the GPU is what the training waits for
        hosts = [{"forward": 0.0, "backward": 0.0}]
    return {
        "samples": samples,
        "forward_s": _rounded(median(each.all["forward"] for each in passes)),
        "backward_s": _rounded(median(each.all["backward"] for each in passes)),
        "forward_host_s": _rounded(median(each["forward"] for each in hosts)),
        "backward_host_s": _rounded(median(each["backward"] for each in hosts)),
    }


def _joined(neighbours: Schedule) -> Ready:
    return sum(bytes_ for bytes_, _ in neighbours), neighbours[-1][1]


def _usual(seconds: Sequence[float]) -> float:
    """Return what a pass costs, where some may have none of it: updates after every other, say."""
    there = [each for each in seconds if each > 0.0]
    return median(there) * len(there) / len(seconds) if there else 0.0


def _mean_wait(seconds: Sequence[float]) -> float:
    """Return the mean, in which the longest wait counts as the next: one may be a stall."""
    ordered = sorted(seconds)
    return fmean([*ordered[:-1], ordered[max(0, len(ordered) - 2)]]) if ordered else 0.0


def _rounded(seconds: float) -> float:
    return float(f"{max(0.0, seconds):.5g}")
