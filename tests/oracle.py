"""An event loop in plain Python: what the compiled simulator must reproduce bit by bit, and beat.

It shares no code with it. It is written as one would write a good simulator without a compiler: a
heap of predicted finishes, from which an entry is dropped when it turns out to be void; curves as
lists. The arithmetic, and the order of whatever is
logged, is that of `coddl.sim.world`, so two event lists can be compared with `==`. How long it
takes is the reference that the compiled loop's speed is told against.
"""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from coddl.traces.trace import Trace
from tests.oracle_policies import (
    BY_ROW,
    AfsL,
    AfsP,
    Crowd,
    Decision,
    Fifo,
    Job,
    MarginalGain,
    MaxMin,
    Model,
    Rank,
    Shortest,
)
from tests.oracle_ranked_speedup import ranked_speedup
from tests.oracle_tiresias import TiresiasL

ARRIVE, FINISH, SHARE, SWAP, WAKE_UP = range(5)
MODES: Final = ("stall", "serial", "concurrent", "uncancelled")

Event: TypeAlias = tuple[float, int, int, int]  # when, kind, job, GPUs
Params: TypeAlias = Mapping[str, Any]  # Any: float | str | bool | tuple[float, ...], by name


class Policy(Protocol):
    """What decides the shares."""

    rigid: bool  # a job's need is its request, else gpus_min

    @property
    def rank(self) -> Rank:
        """A job's place in line; ties go to the job submitted first."""

    def decide(self, crowd: Crowd) -> Decision:
        """Set `share` of every job that gets GPUs; return those jobs."""


def policies_of(params: Params) -> dict[str, Policy]:
    """The policies that the oracle knows, by name."""
    form = params.get("contest", "auto")
    limits_gpu_s = [hours * 3600.0 for hours in params.get("threshold_gpu_h", (1.0,))]
    since_start = params.get("count", "total") == "since-start"
    lease_s = params.get("lease_h", 2.0) * 3600.0
    turn_s = params.get("turn_h", 0.0) * 3600.0 or inf
    return {
        "afs-l": AfsL(form),
        "afs-p": AfsP(lease_s, params.get("tie", "coin"), form),
        "fifo": Fifo(strict=not params.get("backfill", False)),
        "max-min": MaxMin(),
        "max-speedup": MarginalGain(by_time=False),
        "optimus": MarginalGain(by_time=True),
        "ranked-speedup": ranked_speedup(params),
        "srsf": Shortest(weigh=True),
        "srtf": Shortest(weigh=False),
        "tiresias-l": TiresiasL(limits_gpu_s, params.get("promote", 0.0), since_start, turn_s),
    }


class Simulation(Crowd):
    """The jobs in virtual time. Order of things at one instant: finishes, arrivals, the wake-up,
    prepared shares that take effect, and then, unless only the last happened, a decision.
    """

    def __init__(self, jobs: list[Job], gpus: int, policy: Policy, seed: int):
        super().__init__(gpus, policy.rank, seed)
        self.policy = policy
        self.jobs, self.arrived = jobs, 0
        self.free = gpus
        self.wake_s = inf
        self.finishes: list[tuple[float, int, int]] = []  # when, row, version
        self.prepared: list[tuple[float, int]] = []  # when, row
        self.preparing: dict[int, Job] = {}
        self.mode, self.prepare_s, self.pause_s = "stall", 0.0, 0.0
        self.log: list[Event] = []

    def run(self) -> list[Event]:
        """Run to the end; return what happened."""
        while (now_s := self.next_s()) < inf:
            self.now_s = now_s
            changed = self.finish_due()
            changed = self.admit() or changed
            if self.wake_s <= now_s:
                self.wake_s, changed = inf, True
                self.log.append((now_s, WAKE_UP, -1, 0))
            if self.preparing:
                self.swap_what_is_ready()
            if changed:
                self.decide()
            assert len(self.log) < 3_000_000, "is the policy thrashing?"
        return self.log

    def next_s(self) -> float:
        """When something happens next."""
        jobs, finishes, prepared = self.jobs, self.finishes, self.prepared
        next_s = self.wake_s
        if self.arrived < len(jobs):
            next_s = min(next_s, jobs[self.arrived].submitted_s)
        while finishes and finishes[0][2] != jobs[finishes[0][1]].version:
            heappop(finishes)
        if finishes:
            next_s = min(next_s, finishes[0][0])
        # A preparation that is over waits for GPUs, not for time.
        while prepared and (
            prepared[0][0] <= self.now_s or prepared[0][0] != jobs[prepared[0][1]].ready_s
        ):
            heappop(prepared)
        return min(next_s, prepared[0][0]) if prepared else next_s

    def finish_due(self) -> bool:
        """End the jobs whose time has come; tell whether there were any."""
        finishes, running, any_due = self.finishes, self.running, False
        while finishes and finishes[0][0] <= self.now_s:
            _, row, version = heappop(finishes)
            job = self.jobs[row]
            if version != job.version:
                continue
            any_due = True
            done = job.all_iterations - job.left(self.now_s)
            job.trained_s = done * job.model.step_s[job.requested]
            self.free += job.held
            self.needed -= job.need
            job.gpus = job.held = 0
            job.version += 1
            self.cancel(job)
            del running[bisect_left(running, row, key=BY_ROW)]
            self.log.append((self.now_s, FINISH, row, 0))
        return any_due

    def admit(self) -> bool:
        """Let the jobs in that have arrived; tell whether there were any."""
        jobs, before = self.jobs, self.arrived
        while self.arrived < len(jobs) and jobs[self.arrived].submitted_s <= self.now_s:
            job = jobs[self.arrived]
            self.arrived += 1
            self.needed += job.need
            self.enqueue(job)
            self.log.append((self.now_s, ARRIVE, job.row, 0))
        return self.arrived > before

    def decide(self) -> None:
        """Ask the policy, and put its shares into effect, those that shrink first."""
        self.seed = self.seed * 16807 % 2147483647
        before = self.running
        for job in before:
            job.share = 0
        self.running, self.wake_s = self.policy.decide(self)
        for job in before:
            if job.share < job.gpus:
                self.set_share(job, job.share)
                if not job.share:
                    self.enqueue(job)
        for job in self.running:
            if job.share > job.gpus:
                if not job.gpus:
                    self.dequeue(job)
                self.set_share(job, job.share)
        if self.preparing:
            self.swap_what_is_ready()

    def set_share(self, job: Job, share: int) -> None:
        """Give a job a new share; when and at what cost it takes effect depends on the mode."""
        now_s, mode = self.now_s, self.mode
        if not job.starts:
            job.first_start_s = now_s
        if not job.gpus:
            job.starts += 1
            job.last_start_s = now_s
        job.gpus = share
        self.log.append((now_s, SHARE, job.row, share))
        if mode == "stall":
            moving_s = max(now_s, job.moving_s) + self.pause_s if share else now_s
            self.hold(job, share, moving_s)
        elif mode == "serial":
            self.queue_up(job)
        elif not share:
            self.cancel(job)
            self.hold(job, 0, now_s)
        elif mode == "concurrent" or job.ready_s == inf:
            self.cancel(job)
            if share != job.held:
                self.prepare(job, self.now_s + self.prepare_s)

    def hold(self, job: Job, gpus: int, moving_s: float) -> None:
        """Let a job train on `gpus` from `moving_s` on, and predict its end."""
        now_s = self.now_s
        if job.held:
            job.iterations = job.left(now_s)
            job.executed_s += now_s - job.since_s
        self.free += job.held - gpus
        job.held, job.since_s, job.moving_s = gpus, now_s, moving_s
        job.version += 1
        if gpus:
            job.step_s = job.model.step_s[gpus]
            if moving_s < inf:
                finish_s = moving_s + job.iterations * job.step_s
                heappush(self.finishes, (finish_s, job.row, job.version))

    def prepare(self, job: Job, ready_s: float) -> None:
        """Have the share decided last ready by then."""
        job.preparing, job.ready_s = job.gpus, ready_s
        self.preparing[job.row] = job
        heappush(self.prepared, (ready_s, job.row))

    def queue_up(self, job: Job) -> None:
        """Put a target behind those not carried out yet; the job stands still until all are."""
        if job.ready_s < inf:
            self.prepare(job, max(self.now_s, job.ready_s) + self.pause_s)
        else:
            self.prepare(job, self.now_s + self.pause_s)
            self.hold(job, job.held, inf)

    def cancel(self, job: Job) -> None:
        """Drop a preparation, if there is one."""
        if job.ready_s < inf:
            job.ready_s = inf
            del self.preparing[job.row]

    def swap_what_is_ready(self) -> None:
        """Put prepared shares into effect for which there are GPUs, those that shrink first."""
        swapped = True
        while swapped:  # where preparing takes no time, a swap can make the next one ready
            swapped = False
            for growing in (False, True):
                for row in sorted(self.preparing):
                    job = self.preparing[row]
                    grows = job.preparing > job.held
                    if job.ready_s <= self.now_s and grows == growing:
                        swapped = self.swap(job) or swapped

    def swap(self, job: Job) -> bool:
        """Put a prepared share into effect; False if the GPUs for it are held by others."""
        before, share = job.held, job.preparing
        fits = share - before <= self.free
        if fits:
            stands = before and self.mode != "serial"  # there it has stood still already
            self.hold(job, share, self.now_s + (self.pause_s if stands else 0.0))
            self.log.append((self.now_s, SWAP, job.row, share))
            self.cancel(job)
        if share != job.gpus:  # not what is wanted any more; one that does not fit might never do
            if job.gpus == job.held:
                self.cancel(job)
            else:
                self.prepare(job, self.now_s + self.prepare_s)
        return fits


def jobs_of(trace: Trace, gpus: int, rigid: bool) -> list[Job]:
    """The jobs of a trace, with the curves as lists that reach as far as anybody asks."""
    widest = max([gpus, *trace.gpus_requested.tolist(), *trace.gpus_min.tolist()])
    curves = trace.speeds.step_s.tolist(), trace.speeds.useful.tolist()
    more = max(0, widest + 1 - trace.speeds.step_s.shape[1])
    models: dict[tuple[int, int, int], Model] = {}
    jobs = []
    limits = zip(
        trace.curve.tolist(), trace.gpus_min.tolist(), trace.gpus_max.tolist(), strict=True
    )
    for row, limit in enumerate(limits):
        curve, gpus_min, gpus_max = limit
        if limit not in models:
            step_s = curves[0][curve] + curves[0][curve][-1:] * more
            useful = curves[1][curve] + [False] * more
            models[limit] = Model(step_s, useful, gpus_min, gpus_max)
        need = int(trace.gpus_requested[row]) if rigid else gpus_min
        submitted_s, iterations = float(trace.submitted_s[row]), float(trace.iterations[row])
        job = Job(row, submitted_s, iterations, models[limit], need)
        job.all_iterations, job.requested = iterations, int(trace.gpus_requested[row])
        job.cohort = int(trace.queue[row]), int(trace.user[row]), job.requested
        jobs.append(job)
    return jobs


def simulate(
    trace: Trace,
    gpus: int,
    policy: str,
    params: Params | None = None,
    *,
    seed: int = 1,
    mode: str = "stall",
    prepare_s: float = 0.0,
    pause_s: float = 0.0,
) -> list[Event]:
    """Run a trace under a policy; return all events, in order."""
    assert mode in MODES, mode
    chosen = policies_of(params or {})[policy]
    simulation = Simulation(jobs_of(trace, gpus, chosen.rigid), gpus, chosen, seed)
    simulation.mode, simulation.prepare_s, simulation.pause_s = mode, prepare_s, pause_s
    return simulation.run()
