"""Which slices of the global batch fit in a worker's memory: tried, measured, or known. Pure.

From the strongest to the weakest evidence: a slice ran out of memory; a group has trained at that
size; the peaks that were measured at two sizes lie on a line

    peak = base + per_sample * samples

which tells what a larger slice needs; another job with the same model ran out of memory. The last
two never keep a job from a size at which it has trained.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Final, Literal

from coddl.runtime.slices import largest_pass
from coddl.runtime.wire import Message

# What a measure may be off by: the allocator rounds, and kernels choose their workspace by shape.
# It is taken off the larger one and added to the smaller one, so that it counts for more the
# further the line goes beyond them. What the peaks leave out, such as fragments and CUDA's own
# memory, would only add to the need.
NOISE: Final = 0.02
GIB: Final = 1 << 30

Evidence = Literal["tried", "predicted", "remembered"]


@dataclass(frozen=True, slots=True)
class RememberedLimit:
    """A slice that did not fit in another job: for those that train the same model."""

    model: int
    samples: int
    job: int


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """How a job's batch is split among its workers."""

    samples: int = 1  # of the global batch
    workers_max: int = 1
    micro_batch: int | None = None  # samples that a pass has at most

    def largest(self, workers: int) -> int:
        """Give the samples of the largest pass in a group of so many."""
        return largest_pass(ceil(self.samples / workers), self.micro_batch)

    def least(self, fits: Callable[[int, int], bool]) -> int | None:
        """Give the fewest workers whose passes fit, by samples and workers; None: none do."""
        sizes = range(1, self.workers_max + 1)
        return next((n for n in sizes if fits(self.largest(n), n)), None)

    def named(self, samples: int) -> str:
        """Name what so many samples are."""
        return f"a {'slice' if self.micro_batch is None else 'pass'} of {samples} samples"


@dataclass(frozen=True, slots=True)
class SizeLimit:
    """The fewest workers whose slices may fit; None: no number is enough."""

    workers_min: int | None = 1
    because: str = ""
    evidence: Evidence = "tried"
    samples: int = 0  # that are too many; 0: none are known to be

    def as_data(self) -> Message:
        """Give what is told of it."""
        return {
            "workers_min": self.workers_min,
            "because": self.because,
            "evidence": self.evidence,
            "samples": self.samples,
        }


class MemoryFit:
    """Learns from slices that were trained on, and from those that ran out of memory."""

    def __init__(self) -> None:
        self.size = 0  # workers of the last group that made a step
        self._smallest: int | None = None  # group that ever made one
        self._too_large: int | None = None  # the smallest slice that did not fit
        self._elsewhere: RememberedLimit | None = None  # and that did not in another job
        self._peaks: dict[int, tuple[int, int]] = {}  # by samples: the least and the most, in bytes
        # What a larger slice needs does not follow from these: at sizes that train, updates fit.
        self._update_peaks: dict[int, int] = {}  # by samples of the passes before, in bytes
        self._exchange_bytes = 0  # what a worker needs in a group, and not alone
        self._device_bytes = 0

    def trained(self, size: int) -> None:
        """Take note that a group of this size makes steps."""
        self.size = size
        self._smallest = min(size, self._smallest or size)

    def ran_out(self, samples: int) -> None:
        """Take note that a slice of that many samples did not fit."""
        self._too_large = min(samples, self._too_large or samples)

    def remember(self, limit: RememberedLimit) -> None:
        """Take note of what another job with the same model has found out."""
        if self._elsewhere is None or limit.samples < self._elsewhere.samples:
            self._elsewhere = limit

    def measured(
        self,
        *,
        samples: int,
        peak_bytes: int,
        exchange_bytes: int,
        device_bytes: int,
        update_bytes: int = 0,
    ) -> None:
        """Take note of the memory that passes and updates needed at most, and of the device's.

        `exchange_bytes` of that of passes are needed in a group alone. An `update_bytes` of 0 is
        not known.
        """
        own_bytes = peak_bytes - exchange_bytes
        least, most = self._peaks.get(samples, (own_bytes, own_bytes))
        self._peaks[samples] = (min(least, own_bytes), max(most, own_bytes))
        if update_bytes:
            self._update_peaks[samples] = max(update_bytes, self._update_peaks.get(samples, 0))
        self._exchange_bytes = max(exchange_bytes, self._exchange_bytes)
        self._device_bytes = max(device_bytes, self._device_bytes)

    def limit(self, split: BatchSplit) -> SizeLimit:
        """Give the fewest workers whose slices may fit, and why not fewer."""
        found = [self.tried(split), self._predicted(split), self._known_elsewhere(split)]
        return max(found, key=lambda limit: limit.workers_min or split.workers_max + 1)

    def as_data(self) -> Message:
        """Give the peaks that were measured, by the samples of a pass."""
        return {
            "peak_bytes": {samples: most for samples, (_, most) in sorted(self._peaks.items())},
            "update_bytes": dict(sorted(self._update_peaks.items())),
            "device_bytes": self._device_bytes,
        }

    def tried(self, split: BatchSplit) -> SizeLimit:
        """Give the limit that follows from slices that ran out of memory."""
        if (too_large := self._too_large) is None:
            return SizeLimit()
        least = split.least(lambda samples, _: samples < too_large)
        because = f"{split.named(too_large)} does not fit in memory"
        return SizeLimit(least, because, "tried", too_large)

    def _known_elsewhere(self, split: BatchSplit) -> SizeLimit:
        if (elsewhere := self._elsewhere) is None:
            return SizeLimit()
        too_large = elsewhere.samples
        least = self._capped(split.least(lambda samples, _: samples < too_large))
        if least == 1:
            return SizeLimit()
        because = f"{split.named(too_large)} does not fit in memory, as job {elsewhere.job} found"
        return SizeLimit(least, because, "remembered", too_large)

    def _predicted(self, split: BatchSplit) -> SizeLimit:
        if len(self._peaks) < 2:
            return SizeLimit()
        least = self._capped(split.least(self._may_fit))
        if least == 1:
            return SizeLimit()
        samples = split.largest(least - 1)
        _, likely_bytes = self._need(samples, least - 1)
        because = (
            f"{split.named(samples)} would need about {likely_bytes / GIB:.3g} GiB of the GPU's "
            f"{self._device_bytes / GIB:.3g} GiB "
            f"(measured at {min(self._peaks)} and {max(self._peaks)})"
        )
        return SizeLimit(least, because, "predicted", samples)

    def _capped(self, workers_min: int | None) -> int:
        """Allow the sizes at which it has trained; what fits nowhere is no limit at all."""
        least = workers_min or 1
        return least if self._smallest is None else min(least, self._smallest)

    def _may_fit(self, samples: int, workers: int) -> bool:
        return samples <= max(self._peaks) or self._need(samples, workers)[0] <= self._device_bytes

    def _need(self, samples: int, workers: int) -> tuple[float, float]:
        """Give the bytes that a slice needs: the least that may be true, and what is likely."""
        small, large = min(self._peaks), max(self._peaks)
        beyond = (samples - large) / (large - small)
        shared_bytes = self._exchange_bytes if workers > 1 else 0

        def line(smaller_bytes: float, larger_bytes: float) -> float:
            return larger_bytes + (larger_bytes - smaller_bytes) * beyond + shared_bytes

        (_, smaller), (least, most) = self._peaks[small], self._peaks[large]
        return line(smaller * (1 + NOISE), least * (1 - NOISE)), line(smaller, most)
