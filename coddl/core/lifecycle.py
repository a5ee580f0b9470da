"""The phases of a job, and the only ways from one to the next. (C7)

```
          ┌──────────────── resumed ─────────────── suspended ◄─┐
          ▼                                                     │ told to by a user
       pending ──► starting ──► running ◄──► resizing ───► stopping ──► cancelled
                     ▲  │          │            │               │
                     │  └── lost ──┼────────────┤               │ told to by the scheduler
                     │             ▼            ▼               ▼
                     └───────── preempted ◄─────────────────────┘
```
From every phase with devices a job may also succeed, fail, or lose them and be preempted. That a
run had succeeded may arrive after it was taken for lost. A run whose workers are parked, and that
is still being saved, may be called back: from stopping to resizing.
"""

from dataclasses import dataclass
from typing import Final, Literal

Phase = Literal[
    "pending",
    "starting",
    "running",
    "resizing",
    "suspended",
    "preempted",
    "stopping",
    "succeeded",
    "failed",
    "cancelled",
]

WAITING: Final = frozenset[Phase]({"pending", "preempted"})
RUNNING: Final = frozenset[Phase]({"starting", "running", "resizing", "stopping"})
OVER: Final = frozenset[Phase]({"succeeded", "failed", "cancelled"})

TRANSITIONS: Final[dict[Phase, frozenset[Phase]]] = {
    "pending": frozenset({"starting", "suspended", "succeeded", "cancelled"}),
    "preempted": frozenset({"starting", "suspended", "succeeded", "cancelled"}),
    "suspended": frozenset({"pending", "succeeded", "cancelled"}),
    "starting": frozenset({"running", "stopping", "preempted", "pending", *OVER}),
    "running": frozenset({"starting", "resizing", "stopping", "preempted", *OVER}),
    "resizing": frozenset({"starting", "running", "stopping", "preempted", *OVER}),
    "stopping": frozenset({"resizing", "suspended", "preempted", "pending", *OVER}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}


@dataclass(frozen=True, slots=True)
class PhaseTransition:
    """One change of a job's phase."""

    at_s: float
    before: Phase
    after: Phase
    because: str


class IllegalTransition(AssertionError):
    """A phase was to follow another that it can't; the message has the job's story."""

    def __init__(self, name: str, move: PhaseTransition, story: list[PhaseTransition]) -> None:
        lines = [f"{name}: {move.before} -> {move.after} is not allowed; its story:"]
        lines += [f"  t={m.at_s:g}s {m.before} -> {m.after}: {m.because}" for m in story]
        super().__init__("\n".join(lines))


def check(name: str, move: PhaseTransition, story: list[PhaseTransition]) -> None:
    """Raise unless the move is on the table."""
    if move.after not in TRANSITIONS[move.before]:
        raise IllegalTransition(name, move, story)
