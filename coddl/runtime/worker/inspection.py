"""What the passes of a training cost, learned from some of the first, at next to no cost.

A timed pass is a row of marks; what lies between two of them is one phase:

    batch handed out | forward | backward | exchange | other | update | other | data | next batch

On a GPU marks are events in its stream, read when it has come to them: nothing waits. So the time
of a phase is what the GPU's work is late by because of it: a loader that keeps up costs nothing.
A few timed passes also mark when backward has completed each bucket of gradients, as other workers
would be sent them. Only what the script does by itself is timed: no pass is run for it, and slices
have the sizes that occur.
"""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Final, Literal

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from coddl.runtime.wire import Message
from coddl.runtime.worker.backward import BackwardObserver

WARM_UP: Final = 4  # passes in a group, before one is timed
PASSES: Final = 20  # that are timed, of the largest slice
PASSES_MIN: Final = (
    3  # of others, as of the last batch of an epoch, and of a training that is short
)
SCHEDULES: Final = 3  # passes in which gradients are watched
SIZES_MAX: Final = 8
BUCKETS_MAX: Final = 64

Phase = Literal["forward", "backward", "exchange", "update", "other", "data"]
Mark = float | torch.cuda.Event
Buckets = Callable[[], list[list[Tensor]]]  # parameters whose gradients are sent together, in order
Ready = tuple[int, float]  # bytes of a bucket, and the part of backward after which it is ready
Schedule = list[Ready]


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
        return event

    def is_past(self, mark: Mark) -> bool:
        """Tell whether the GPU has come there."""
        return isinstance(mark, float) or mark.query()

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Give the time between two marks that are past."""
        if isinstance(begin, float) or isinstance(end, float):
            assert isinstance(begin, float)
            assert isinstance(end, float)
            return end - begin
        return float(begin.elapsed_time(end)) * 1e-3


class BucketWatch:
    """Marks when each bucket of gradients is complete, in the backwards of one pass."""

    def __init__(self, buckets: Sequence[Sequence[Tensor]], clock: PassClock) -> None:
        self.backwards: list[list[tuple[int, Mark | None]]] = []  # of those that got a gradient
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
        """Let go of the parameters."""
        for hook in self._hooks:
            hook.remove()

    def begin(self) -> None:
        """Expect a backward."""
        self._got = set()
        self._missing, self._marks = list(self._sizes), [None] * len(self._sizes)

    def end(self) -> None:
        """Keep what the backward has shown."""
        used = {self._number[each] for each in self._got}
        told = zip(self._bytes, self._marks, strict=True)
        self.backwards.append([each for i, each in enumerate(told) if i in used])

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
    watch: BucketWatch | None = None

    def seconds(self, clock: PassClock) -> dict[Phase, float]:
        """Give the time in each phase."""
        found: dict[Phase, float] = {}
        at = self.begin
        for phase, end in self.ends:
            found[phase] = found.get(phase, 0.0) + clock.seconds(at, end)
            at = end
        return found

    def schedule(self, clock: PassClock) -> Schedule:
        """Give the buckets in the order in which they are sent, and when each can be.

        They are sent in order, the last one of a backward when that has ended.
        """
        if self.watch is None:
            return []
        marks = [self.begin, *(end for _, end in self.ends)]
        spans = [(marks[i], end) for i, (phase, end) in enumerate(self.ends) if phase == "backward"]
        total_s = sum(clock.seconds(*span) for span in spans)
        found: Schedule = []
        before_s = ready_s = 0.0
        for (begin, end), buckets in zip(spans, self.watch.backwards, strict=False):
            end_s = before_s + clock.seconds(begin, end)
            for number, (bytes_, mark) in enumerate(buckets):
                is_last = mark is None or number == len(buckets) - 1
                own_s = end_s if is_last or mark is None else before_s + clock.seconds(begin, mark)
                ready_s = min(end_s, max(ready_s, own_s))
                found.append((bytes_, ready_s / total_s if total_s else 1.0))
            before_s = end_s
        return found


class PassInspector(BackwardObserver):
    """Times passes until it knows what they cost; then it costs nothing.

    `observe` has it told of backwards, or nobody. `tell` is given what was learned: once for the
    first size of slices, and again when another one has been measured; None: nothing is timed.
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
        self._now: TimedPass | None = None
        self._in_backward = False
        self._ended: list[TimedPass] = []  # that the GPU may not have come to the end of
        self._times: dict[int, list[dict[Phase, float]]] = {}  # by samples
        self._schedules: list[Schedule] = []
        self._told: set[int] = set()  # sizes

    def regroup(self, *, is_apt: bool = True) -> None:
        """Take note of another group; `is_apt`: what workers wait for is no part of a phase."""
        self._drop()
        self._is_apt, self._passes = is_apt and self._is_on, 0

    def begin(self, samples: int) -> None:
        """Take note that a pass begins: its batch is there."""
        self._end("data")
        self._passes += 1
        if not self._wants(samples) or (now := self._clock.mark()) is None:
            return
        self._now, self._in_backward = TimedPass(samples, now), False
        if self.overlap and len(self._schedules) < SCHEDULES:
            self._now.watch = BucketWatch(self._buckets(), self._clock)
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
            if self._now.watch is not None:
                self._now.watch.begin()

    def end_backward(self) -> None:
        self._in_backward = False
        self.mark("backward")
        if self._now is not None and self._now.watch is not None:
            self._now.watch.end()

    def end_exchange(self) -> None:
        self.mark("exchange")

    def rest(self) -> None:
        """Leave out what follows, as an evaluation, up to the next pass."""
        self._end(None)

    def finish(self) -> None:
        """Tell what is known at the end of a training that was too short for more."""
        self._end(None)
        self._read()
        if not self._told and self._known(PASSES_MIN):
            self._tell(self._measured())

    def _needed(self, samples: int) -> int:
        return PASSES if samples >= max(self._times, default=0) else PASSES_MIN

    def _wants(self, samples: int) -> bool:
        if not self._is_apt or self._passes <= WARM_UP or samples < 1:
            return False
        if samples not in self._times:
            return len(self._times) < SIZES_MAX
        under_way = sum(each.samples == samples for each in self._ended)
        return len(self._times[samples]) + under_way < self._needed(samples)

    def _end(self, phase: Phase | None) -> None:
        """End the pass that is timed, if one is; read what can be read by now."""
        if self._now is None and not self._ended:
            return
        if phase is not None:
            self.mark(phase)
        ended = self._now
        self._drop()
        if ended is not None and any(phase == "backward" for phase, _ in ended.ends):
            self._ended.append(ended)
            self._times.setdefault(ended.samples, [])
        self._read()
        news = self._known(None) - self._told
        if news:
            self._told |= news
            self._tell(self._measured())

    def _drop(self) -> None:
        if self._now is not None:
            self._observe(None)
            if self._now.watch is not None:
                self._now.watch.close()
            self._now = None

    def _read(self) -> None:
        while self._ended and self._clock.is_past(self._ended[0].ends[-1][1]):
            timed = self._ended.pop(0)
            self._times[timed.samples].append(timed.seconds(self._clock))
            if schedule := timed.schedule(self._clock):
                self._schedules.append(schedule)

    def _known(self, passes: int | None) -> set[int]:
        """Name the sizes of which so many passes were timed; None: as many as are needed."""
        counts = {samples: len(times) for samples, times in self._times.items()}
        return {n for n, count in counts.items() if count >= (passes or self._needed(n))}

    def _measured(self) -> Message:
        known = sorted(self._known(PASSES_MIN))
        times = [each for samples in known for each in self._times[samples]]
        return {
            "slices": [
                {
                    "samples": samples,
                    "forward_s": _rounded(median(t["forward"] for t in self._times[samples])),
                    "backward_s": _rounded(median(t["backward"] for t in self._times[samples])),
                }
                for samples in known
            ],
            "update_s": _rounded(_usual([t.get("update", 0.0) for t in times])),
            "other_s": _rounded(_usual([t.get("other", 0.0) for t in times])),
            # Loader processes bring several batches at once: most passes wait for none.
            "data_s": _rounded(fmean([t["data"] for t in times if "data" in t] or [0.0])),
            "buckets": [
                {"bytes": bytes_, "ready": round(ready, 4)} for bytes_, ready in self._schedule()
            ],
        }

    def _schedule(self) -> Schedule:
        """Give the buckets, with medians of when they were ready."""
        alike = [each for each in self._schedules if len(each) == len(self._schedules[-1])]
        if not alike:
            return [(sum(p.nbytes for p in bucket), 1.0) for bucket in self._buckets()]
        times = [median(ready for _, ready in column) for column in zip(*alike, strict=True)]
        found = [
            (bytes_, min(1.0, max(1e-4, ready)))
            for (bytes_, _), ready in zip(alike[-1], times, strict=True)
        ]
        while len(found) > BUCKETS_MAX:
            found = [_joined(found[i : i + 2]) for i in range(0, len(found), 2)]
        return found


def _joined(neighbours: Schedule) -> Ready:
    return sum(bytes_ for bytes_, _ in neighbours), neighbours[-1][1]


def _usual(seconds: Sequence[float]) -> float:
    """Give what a pass costs, where some may have none of it: updates after every other, say."""
    there = [each for each in seconds if each > 0.0]
    return median(there) * len(there) / len(seconds) if there else 0.0


def _rounded(seconds: float) -> float:
    return float(f"{max(0.0, seconds):.5g}")
