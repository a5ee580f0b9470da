"""Statistics that a worker reports: seconds per pass, of data, of exchanges; memory of passes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from coddl.runtime.worker.footprint import Footprint
from coddl.runtime.worker.supervisor_link import SupervisorLink

REPORT_EVERY_S: Final = 0.05
SPANS_MAX: Final = 2000  # a trace that is not fetched must not grow without end


class PassStats:
    """Times the parts of passes; reports sums at most every 50 ms. Off without a supervisor."""

    def __init__(
        self, link: SupervisorLink | None, *, traced: bool, footprint: Footprint | None = None
    ) -> None:
        self._link = link
        self._footprint = footprint
        self._traced = traced
        self._spans: list[list[Any]] = []
        self._sums: dict[str, float] = {}
        self._nodes = 0
        self._iterations = 0
        self._samples = 0
        self._since_s = time.monotonic()
        self._alive_s = 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Time a part of the work on the training thread."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.add(name, start_ns)

    def add(self, name: str, start_ns: int) -> None:
        """Count the time since then under a name."""
        duration_ns = time.monotonic_ns() - start_ns
        self._sums[name] = self._sums.get(name, 0.0) + duration_ns * 1e-9
        if self._traced and len(self._spans) < SPANS_MAX:
            self._spans.append([name, "training", start_ns, duration_ns])

    def count_gpu(self, seconds: float) -> None:
        """Count what the GPU was busy with: there, a pass costs the host next to nothing."""
        self._sums["gpu"] = self._sums.get("gpu", 0.0) + seconds

    def passed(self, nodes: int) -> None:
        """Count a pass of `nodes` virtual nodes."""
        self._nodes += nodes

    def iterated(self, step: int, samples: int, epoch: int = 0) -> None:
        """Count an iteration; report when it is time."""
        self._iterations += 1
        self._samples += samples
        now_s = time.monotonic()
        if self._link is None or now_s - self._since_s < REPORT_EVERY_S:
            return
        measured = self._footprint.take() if self._footprint is not None else None
        self._link.tell(
            "stepped",
            step=step,
            epoch=epoch,
            iterations=self._iterations,
            window_s=now_s - self._since_s,
            pass_s=self._sums.get("gpu", self._sums.get("compute", 0.0)) / max(1, self._nodes),
            data_wait_s=self._sums.get("data", 0.0),
            exchange_s=self._sums.get("exchange", 0.0),
            samples=self._samples,
            **({} if measured is None else {"memory": measured}),
        )
        self.flush()
        self._sums.clear()
        self._nodes = self._iterations = self._samples = 0
        self._since_s = now_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time meanwhile."""
        start_s = time.monotonic()
        yield
        self._since_s += time.monotonic() - start_s

    def flush(self) -> None:
        """Send the spans there are."""
        if self._link is not None and self._spans:
            self._link.tell("spans", spans=self._spans)
            self._spans = []

    def alive(self) -> None:
        """Say, once a second, that this worker waits and is not to blame."""
        now_s = time.monotonic()
        if self._link is not None and now_s - self._alive_s > 1.0:
            self._alive_s = now_s
            self._link.tell("alive")


class GpuClock:
    """Times a GPU's work between two marks, a pass late, so that nothing waits for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._is_used = device.type == "cuda"
        self._now: list[torch.cuda.Event] = []
        self._before: list[torch.cuda.Event] = []

    def mark(self, which: int) -> None:
        """Mark the beginning (0) or the end (1), in the order of the GPU's work."""
        if self._is_used:
            if which == 0:
                self._before, self._now = self._now, []
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._now.append(event)

    def seconds_before(self) -> float | None:
        """Return the time between the marks of the last pass, if the GPU has come to their end."""
        if len(self._before) != 2 or not self._before[1].query():
            return None
        return float(self._before[0].elapsed_time(self._before[1])) * 1e-3
