"""Which slices of the global batch fit into a worker's memory, as far as it was tried. Pure."""

from math import ceil


class Fitting:
    """Learns from slices that were trained on, and from one that ran out of memory."""

    def __init__(self) -> None:
        self.size = 0  # workers of the last group that made a step
        self._too_large: int | None = None  # the smallest slice that did not fit

    def trained(self, size: int) -> None:
        """Take note that a group of this size makes steps."""
        self.size = size

    def ran_out(self, samples: int) -> None:
        """Take note that a slice of that many samples did not fit."""
        self._too_large = min(samples, self._too_large or samples)

    def workers_min(self, parts: int) -> int | None:
        """Give the least number of workers whose slices may fit; None: no number does."""
        if self._too_large is None:
            return 1
        return ceil(parts / (self._too_large - 1)) if self._too_large > 1 else None

    @property
    def because(self) -> str:
        """Say why there is a minimum."""
        return f"a slice of {self._too_large} samples does not fit in memory"
