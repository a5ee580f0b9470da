"""What has happened in the demo so far, from the server's events; reads no clock."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from coddl.cli.demo.scenario import ScheduledJob
from coddl.core.pool.records import ENDS

Answer = Mapping[str, Any]  # Any: what JSON can hold

OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLED")
RESIZES: Final = ("resized", "moved", "rebalanced", "regrouped")


@dataclass(frozen=True, slots=True)
class Sample:
    """What a job held from a moment on; None: it is over."""

    at_s: float
    gpus: int | None


@dataclass(slots=True)
class DemoJob:
    """One job of the demo."""

    scheduled: ScheduledJob
    number: int
    job: Answer
    samples: list[Sample] = field(default_factory=list)
    pauses_s: list[float] = field(default_factory=list)
    decided: int = 0  # GPUs, by the newest decision received

    @property
    def is_over(self) -> bool:
        return self.job["state"] in OVER


@dataclass(slots=True)
class DemoHistory:
    """The jobs in the order of their submission, and the newest lines about them."""

    gpus: int
    kind: str  # of devices
    policy: str
    begin_s: float  # wall clock
    parts: list[DemoJob] = field(default_factory=list)
    lines: list[tuple[float, str, str]] = field(default_factory=list)  # when, which job, what
    now_s: float = 0.0  # since the beginning

    def enter(self, scheduled: ScheduledJob, job: Answer) -> None:
        """Take note of a job that was handed in."""
        self.parts.append(DemoJob(scheduled, int(job["id"]), job))

    def see(self, jobs: Sequence[Answer], now_s: float) -> None:
        """Take note of how the jobs stand at a moment."""
        self.now_s = now_s - self.begin_s
        known = {int(job["id"]): job for job in jobs}
        for part in self.parts:
            part.job = known.get(part.number, part.job)
            gpus = None if part.is_over else int(part.job["gpus"])
            if not part.samples or part.samples[-1].gpus != gpus:
                part.samples.append(Sample(self.now_s, gpus))

    def hear(self, events: Sequence[Answer]) -> list[tuple[float, str, str]]:
        """Take note of events; give what is worth a line."""
        new = [line for event in events for line in self._told(event)]
        self.lines += new
        return new

    def _told(self, event: Answer) -> list[tuple[float, str, str]]:
        at_s, detail = event["at_s"] - self.begin_s, event["detail"]
        parts = {part.number: part for part in self.parts}
        if event["kind"] == "Decided":
            return [
                (
                    at_s,
                    parts[int(job)].scheduled.name,
                    self._aim(parts[int(job)], target, detail["why"]),
                )
                for job, target in detail["targets"].items()
                if int(job) in parts
            ]
        part = parts.get(event["job"] or 0)
        if part is None:
            return []
        if event["kind"] == "JobSubmitted":
            return [(at_s, part.scheduled.name, "submitted")]
        if event["kind"] == "RunEnded":
            return [
                (at_s, part.scheduled.name, f"{ENDS[detail['outcome']]} at step {detail['step']}")
            ]
        if event["kind"] == "RunChanged" and detail["kind"] in RESIZES:
            part.pauses_s.append(float(detail["pause_s"]))
            before, now = detail["gpus_before"], len(detail["slots"])
            pause = f"pause {detail['pause_s'] * 1000:.0f} ms"
            return [(at_s, part.scheduled.name, f"resized {before} → {now} {self.kind} ({pause})")]
        return []

    def _aim(self, part: DemoJob, target: Answer, why: str) -> str:
        before, count = part.decided, len(target["slots"])
        part.decided = count
        if not count:
            return f"{before} → 0 {self.kind}: {target['reason']}"
        # How large its share is, and with how many others, stands in its row.
        return f"{before} → {count} {self.kind} ({why})"

    @property
    def is_over(self) -> bool:
        return all(part.is_over for part in self.parts)
