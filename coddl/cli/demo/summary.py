"""What the demo comes to: how long each job took, and what FIFO would have made of it."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.text import Text

from coddl.cli.demo.scenario import StepProfile
from coddl.cli.poolview import Answer, table

FIFO: Final = "fifo"


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of one job."""

    name: str
    kind: StepProfile  # jobs of one kind run the same steps
    state: str
    submitted_s: float  # since the beginning
    jct_s: float
    steps: int
    gpus_max: int
    resizes: int
    pauses_s: tuple[float, ...]
    step_s: Mapping[int, float]  # by GPUs, as measured


@dataclass(frozen=True, slots=True)
class DemoSummary:
    """All jobs, compared with FIFO."""

    policy: str
    gpus: int
    jobs: tuple[JobResult, ...]
    fifo_jct_s: tuple[float, ...]

    def is_worked_out(self, job: JobResult) -> bool:
        """Return whether the speed that FIFO would give a job was never measured."""
        return job.gpus_max not in measured_of(job, self.jobs)

    @property
    def pauses_s(self) -> list[float]:
        return [pause_s for job in self.jobs for pause_s in job.pauses_s]

    @property
    def mean_jct_s(self) -> float:
        return statistics.mean(job.jct_s for job in self.jobs)

    @property
    def fifo_mean_jct_s(self) -> float:
        return statistics.mean(self.fifo_jct_s)

    def as_data(self) -> dict[str, Any]:  # Any: what JSON can hold
        """Return it for a program."""
        jobs = [
            asdict(job) | {"fifo_jct_s": fifo_s}
            for job, fifo_s in zip(self.jobs, self.fifo_jct_s, strict=True)
        ]
        pauses_s = self.pauses_s
        return {
            "policy": self.policy,
            "gpus": self.gpus,
            "jobs": jobs,
            "mean_jct_s": self.mean_jct_s,
            "fifo_mean_jct_s": self.fifo_mean_jct_s,
            "speedup": self.fifo_mean_jct_s / self.mean_jct_s,
            "resizes": sum(job.resizes for job in self.jobs),
            "median_pause_s": statistics.median(pauses_s) if pauses_s else None,
            "longest_pause_s": max(pauses_s, default=None),
        }


def fared(kind: StepProfile, told: Answer, begin_s: float, pauses_s: Sequence[float]) -> JobResult:
    """Take from what the server explains how a job fared."""
    job, speeds = told["job"], told["speeds"]
    return JobResult(
        name=job["name"],
        kind=kind,
        state=job["state"],
        submitted_s=job["submitted_s"] - begin_s,
        jct_s=job["jct_s"],
        steps=int(job["steps"] or job["step"]),
        gpus_max=job["gpus_max"],
        resizes=job["resizes"],
        pauses_s=tuple(pauses_s),
        step_s={s["gpus"]: s["step_s"] for s in speeds if s["source"] == "measured"},
    )


def measured_of(job: JobResult, jobs: Sequence[JobResult]) -> dict[int, float]:
    """Return the step times that were measured of jobs of its kind, by GPUs; its own come first."""
    alike = [other for other in jobs if other.kind == job.kind and other is not job]
    found: dict[int, float] = {}
    for each in (*alike, job):
        found.update(each.step_s)
    return found


def curve_of(job: JobResult, jobs: Sequence[JobResult]) -> dict[int, float]:
    """Return a job's step times up to its maximum.

    What was never measured is worked out: the pauses that its script makes are known, and the rest
    is as where it was measured.
    """
    found = measured_of(job, jobs)
    rest_s = [step_s - job.kind.step_s(gpus) for gpus, step_s in found.items()]
    more_s = statistics.mean(rest_s) if rest_s else 0.0
    sizes = range(1, job.gpus_max + 1)
    return {gpus: found.get(gpus, job.kind.step_s(gpus) + more_s) for gpus in sizes}


def fifo_jct_s(jobs: Sequence[JobResult], gpus: int) -> list[float]:
    """Simulate strict FIFO: each job waits for its gpus_max and keeps them to its end."""
    import numpy as np

    from coddl.core.registry import policy_from
    from coddl.core.speed.table import interpolated
    from coddl.sim.run_key import RunKey
    from coddl.sim.simulate import Case, run_case
    from coddl.traces.trace import trace_of

    curves = {str(row): sorted(curve_of(job, jobs).items()) for row, job in enumerate(jobs)}
    requested = np.array([job.gpus_max for job in jobs], np.int64)
    trace = trace_of(
        "demo",
        interpolated(curves),
        submitted_s=np.array([job.submitted_s for job in jobs]),
        curve=np.arange(len(jobs)),
        iterations=np.array([float(job.steps) for job in jobs]),
        gpus_requested=requested,
        gpus_min=np.ones(len(jobs), np.int64),
        gpus_max=requested,
    )
    # Step by step: six jobs are not worth compiling the fast loop for.
    run = run_case(Case(RunKey(FIFO, gpus), policy_from(FIFO), trace), step_by_step=True)
    return [float(jct_s) for jct_s in run.jct_s]


def summary_lines(summary: DemoSummary) -> list[Text]:
    """Format it for people."""
    rows = []
    for job, fifo_s in zip(summary.jobs, summary.fifo_jct_s, strict=True):
        rows.append(
            {
                "JOB": job.name,
                "STATE": job.state,
                "SUBMITTED": f"{job.submitted_s:.0f} s",
                "JCT": f"{job.jct_s:.1f} s",
                "FIFO": f"{fifo_s:.1f} s{' ~' if summary.is_worked_out(job) else ''}",
                "RESIZES": str(job.resizes),
                "PAUSES": _pauses(job.pauses_s),
            }
        )
    ratio = summary.fifo_mean_jct_s / summary.mean_jct_s
    mean = f"mean JCT {summary.mean_jct_s:.1f} s with {summary.policy}"
    fifo = f"{summary.fifo_mean_jct_s:.1f} s with FIFO"
    lines = [Text(), *table(rows), Text()]
    lines.append(Text(f"{mean}, {fifo}: {ratio:.2f}x", style="bold"))
    if summary.pauses_s:
        count = len(summary.pauses_s)
        told = f"{count} resizes during training; pauses: {_pauses(summary.pauses_s)}"
        lines.append(Text(told))
    lines.append(
        Text(
            "JCT: job completion time, from submission to end. FIFO: simulated with the same "
            "arrivals, lengths\nand measured step times; each job waits for its maximum and keeps "
            "it. In the simulation, starts\nand pauses take no time.",
            style="dim",
        )
    )
    if any(map(summary.is_worked_out, summary.jobs)):
        told = "~ estimated: its speed at its maximum was not measured, only at smaller sizes"
        lines.append(Text(told, style="dim"))
    return lines


def _pauses(pauses_s: Sequence[float]) -> str:
    if not pauses_s:
        return ""
    middle_s, longest_s = statistics.median(pauses_s), max(pauses_s)
    return f"median {middle_s * 1000:.0f} ms, longest {longest_s * 1000:.0f} ms"
