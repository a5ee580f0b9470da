"""What came of many runs: counts, failures, and which faults met which phases."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from coddl.testing.full_system.plan import WEIGHTS, SimulationPlan
from coddl.testing.full_system.simulation import Outcome

PHASES: Final = (
    *("pending", "starting", "running", "resizing", "stopping", "suspended", "preempted"),
    *("server idle", "server deciding", "server down"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that has broken an invariant."""

    seed: int
    invariant: str
    sentence: str
    at_s: float

    def __str__(self) -> str:
        return (
            f"FAILED seed={self.seed} t={self.at_s:.1f}s  {self.invariant} ({self.sentence})\n"
            f"replay: make sim-one SEED={self.seed}"
        )


@dataclass(slots=True)
class SwarmReport:
    """Many runs together."""

    runs: int = 0
    virtual_s: float = 0.0
    records: int = 0
    callbacks: int = 0
    jobs: int = 0
    faults: int = 0
    failures: list[Failure] = field(default_factory=list)
    met: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        """Count a run."""
        self.runs += 1
        self.virtual_s += outcome.ended_s
        self.records += outcome.records
        self.callbacks += outcome.steps
        self.jobs += len(outcome.plan.jobs)
        self.faults += len(outcome.plan.faults)
        self.met.update(outcome.met)
        if outcome.broken is not None:
            self.failures.append(Failure(outcome.plan.seed, *outcome.broken))

    @property
    def coverage(self) -> str:
        """Show how often each fault met each phase, as a table."""
        width = max(len(kind) for kind in WEIGHTS)
        lines = [" " * width + "".join(f"{phase:>16}" for phase in PHASES)]
        for kind in WEIGHTS:
            counts = (self.met[kind, phase] for phase in PHASES)
            lines.append(f"{kind:<{width}}" + "".join(f"{n or '-':>16}" for n in counts))
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """Say it in a line."""
        return (
            f"{self.runs} seeds, {len(self.failures)} failed: {self.jobs} jobs, {self.faults} "
            f"faults, {self.virtual_s / 3600:.1f} h of virtual time, {self.records} records, "
            f"{self.callbacks} callbacks"
        )

    def as_data(self) -> dict[str, Any]:  # JSON: text and numbers
        """Give it for programs."""
        coverage = {kind: {phase: self.met[kind, phase] for phase in PHASES} for kind in WEIGHTS}
        return {
            "seeds": self.runs,
            "failed": [msgspec.to_builtins(failure) for failure in self.failures],
            "jobs": self.jobs,
            "faults": self.faults,
            "virtual_s": self.virtual_s,
            "records": self.records,
            "callbacks": self.callbacks,
            "coverage": coverage,
        }


def shown(plan: SimulationPlan) -> Iterable[str]:
    """Say what a plan is made of."""
    yield f"policy {plan.policy}, placement {plan.placement}, lease {plan.lease_s:g} s"
    for node in plan.nodes:
        yield f"node {node.name}: {node.slots} of {node.kind}, joins at {node.joins_s:.1f} s"
    for job in plan.jobs:
        bounds = f"{job.spec.gpus_min}..{job.spec.gpus_max}"
        yield f"{job.spec.name}: {job.spec.tier}, {bounds} GPUs, at {job.at_s:.1f} s"
    for act in plan.acts:
        yield f"user at {act.at_s:.1f} s: {act.kind} (job {act.job}, node {act.node})"
    for fault in plan.faults:
        yield f"fault at {fault.at_s:.1f} s: {fault}"
