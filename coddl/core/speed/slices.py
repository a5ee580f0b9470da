"""Time and memory of a pass, as functions of its samples: a fixed part and one for every sample.

Memory is what the pass or the update after it needs, whichever is more: with few samples that is
the update, of which the memory of passes tells nothing.

On a GPU, a pass takes no less than the host needs to launch its kernels. Sizes at which that is
what a pass takes tell nothing of what a sample costs. Alone, the host launches a pass while the GPU
still computes the one before; with other workers it waits for each exchange first, so that each
half of a pass takes at least its launches.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from coddl.core.speed.profile import SliceMemory, TrainingProfile

LAUNCHING: Final = 0.9  # the part of a pass from which on it counts as no more than launching


class SliceLine(NamedTuple):
    """What a pass costs: a fixed part, and one for each sample."""

    fixed: float
    per_sample: float

    def at(self, samples: float) -> float:
        """Return the cost of a pass over these samples."""
        return self.fixed + self.per_sample * samples


class PeakMemory(NamedTuple):
    """How much GPU memory a training needs: that of a pass, or of the update after it."""

    of_pass: SliceLine
    of_update: SliceLine

    def at(self, samples: float) -> float:
        """Return the bytes that passes over these samples need."""
        return max(line.at(samples) for line in self)

    def samples_in(self, device_bytes: float) -> int:
        """Return how many samples a pass may have in so much memory: at least one."""
        lines = [line for line in self if line.per_sample > 0.0]
        return max(1, min(int((device_bytes - line.fixed) / line.per_sample) for line in lines))


class HalfPass(NamedTuple):
    """Seconds of one half of a pass: as of a line, but no less than the host takes."""

    fixed_s: float
    sample_s: float
    least_s: float = 0.0

    def computing_s(self, samples: float) -> float:
        """Return the seconds of that half for these samples, if launching takes no time."""
        return self.fixed_s + self.sample_s * samples

    def at(self, samples: float) -> float:
        """Return the seconds of that half for these samples, from when its launches begin."""
        return max(self.computing_s(samples), self.least_s)


class PassTimes(NamedTuple):
    """Seconds of the two halves of a pass on one GPU."""

    forward: HalfPass
    backward: HalfPass

    def at(self, samples: float) -> float:
        """Return the seconds of a pass over these samples that follows another one."""
        return sum(self.halves(samples))

    def halves(self, samples: float) -> tuple[float, float]:
        """Return the seconds of forward and backward in a pass that follows another one."""
        computing_s = self.forward.computing_s(samples), self.backward.computing_s(samples)
        launching_s = self.forward.least_s, self.backward.least_s
        return max(computing_s, launching_s, key=sum)


def fitted_line(points: Iterable[tuple[float, float]], relative: bool = False) -> SliceLine:
    """Fit y = fixed + per_sample x to points (x, y) by least squares, both at least 0.

    With `relative` it is the errors relative to y that count. Where all points have one x, nothing
    tells the two apart, and the fixed part is taken to be 0.
    """
    known = [(x, y, 1.0 / (y * y) if relative and y > 0.0 else 1.0) for x, y in points]
    total = sum(w for _, _, w in known)
    mean_x = sum(w * x for x, _, w in known) / total
    mean_y = sum(w * y for _, y, w in known) / total
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in known)
    if spread <= 1e-12 * total * mean_x**2:
        return SliceLine(0.0, mean_y / mean_x)
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in known) / spread
    if slope < 0.0:
        return SliceLine(mean_y, 0.0)
    fixed = mean_y - slope * mean_x
    if fixed < 0.0:  # better than perfect: noise
        squares = sum(w * x * x for x, _, w in known)
        return SliceLine(0.0, sum(w * x * y for x, y, w in known) / squares)
    return SliceLine(fixed, slope)


def pass_times(profile: TrainingProfile) -> PassTimes:
    """How long a pass takes on the profiled GPU, fitted to the slices that were measured."""
    return PassTimes(
        _half([(each.samples, each.forward_s, each.forward_host_s) for each in profile.slices]),
        _half([(each.samples, each.backward_s, each.backward_host_s) for each in profile.slices]),
    )


def _half(slices: Sequence[tuple[int, float, float]]) -> HalfPass:
    """Fit one half of a pass to its samples, seconds and seconds of the host."""
    computed = [(n, took_s) for n, took_s, host_s in slices if host_s < LAUNCHING * took_s]
    least_s = min((min(took_s, host_s) for _, took_s, host_s in slices if host_s), default=0.0)
    if not computed:
        return HalfPass(0.0, 0.0, max(took_s for _, took_s, _ in slices))
    return HalfPass(*fitted_line(computed, relative=True), least_s)


def peak_bytes(profile: TrainingProfile) -> PeakMemory | None:
    """How much GPU memory a pass takes, fitted to what was measured; None where nothing was.

    One size does not tell what every sample adds: then all of a pass's peak is taken to be of
    samples but for the state, which is there in any case, and nothing of an update's.
    """
    if not profile.memory:
        return None
    updates = profile.update_memory
    in_update = max((float(each.peak_bytes) for each in updates), default=0.0)
    return PeakMemory(
        _memory_line(profile.memory, float(profile.state_bytes)),
        _memory_line(updates, in_update) if updates else SliceLine(0.0, 0.0),
    )


def _memory_line(memory: Sequence[SliceMemory], fixed_bytes: float) -> SliceLine:
    """Fit memory to samples; of one size, so much is taken to be the fixed part."""
    if len({each.samples for each in memory}) == 1:
        peak = float(max(each.peak_bytes for each in memory))
        fixed = min(fixed_bytes, peak)
        return SliceLine(fixed, (peak - fixed) / memory[0].samples)
    return fitted_line(((each.samples, each.peak_bytes) for each in memory), relative=True)


def passes_needed(profile: TrainingProfile, samples: int, device_bytes: float) -> int | None:
    """In how many passes a GPU of so much memory works through a slice.

    1 where it fits whole, and where no memory was measured. None if not even one sample fits.
    """
    peak = peak_bytes(profile)
    if peak is None:
        return 1
    if peak.at(min(samples, 1)) > device_bytes:
        return None
    if peak.at(samples) <= device_bytes:
        return 1
    return -(-samples // peak.samples_in(device_bytes))
