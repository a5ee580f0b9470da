"""Gandiva's claims, as in *Gandiva: Introspective Cluster Scheduling for Deep Learning*, OSDI '18.

The paper shows measured jobs, but of their speeds it prints Table 1 alone. Where a claim is on a
mechanism, ours are synthetic jobs on which it can be seen.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from coddl.core.allocation import Allocation
from coddl.core.cluster import Cluster
from coddl.core.columns import FloatColumn, IntColumn
from coddl.core.placement.consolidate import Consolidate
from coddl.core.placement.gandiva import GandivaPlacement
from coddl.core.policies.fifo import Fifo
from coddl.core.policies.gandiva.assignment import COLUMN
from coddl.core.policies.gandiva.policy import Gandiva
from coddl.core.policies.policy import Policy
from coddl.core.snapshot import Snapshot
from coddl.core.speed.table import Speeds, interpolated
from coddl.reproduce.experiment import Details, Experiment, Figure, Finding, Inputs, Plot
from coddl.sim.progress import iterations_at, time_to_iterations
from coddl.sim.run_key import RunKey
from coddl.sim.simulate import Case, run_case
from coddl.sim.study import ci95
from coddl.sim.world import SHARE, Reconfigure
from coddl.traces.gandiva_table import packing_speeds, packing_table
from coddl.traces.trace import Trace, trace_of

SOURCE: Final = "Xiao et al., OSDI '18 (Gandiva)"
HOUR_S: Final = 3600.0
# To suspend one job and resume another; to move one to another server, with 1 GPU and with 8.
SWITCH: Final = Reconfigure("stall", pause_s=0.1, move_s=(1.5, 35.0))
EXAMPLE_SIZES: Final = (1, 2, 4, 1, 2, 1, 1, 4, 4, 2, 1)  # GPUs asked for, a minute apart
SEARCH_JOBS, SEARCH_GPUS, SEARCH_LENGTH_S = 60, 8, 4 * HOUR_S
SEARCH_PARTS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
CLUSTER_GPUS, SERVER_GPUS = 180, 4
MIX: Final = ((1, 0.7), (2, 0.15), (4, 0.15))  # GPUs asked for, and how often
WINDOW_H: Final = tuple(range(1, 9))
LOAD: Final = 1.5  # work that arrives, in GPU-seconds at the requests, over what there is
LENGTH_H: Final = (0.5, 3.0)


class JobColumns(NamedTuple):
    """Jobs that take so long at the GPUs they ask for."""

    submitted_s: FloatColumn
    length_s: FloatColumn
    gpus: IntColumn
    curve: IntColumn

    def on(self, speeds: Speeds, gpus_max: IntColumn | None = None) -> Trace:
        """The trace of these jobs; what they can use at most is what they ask for, or is given."""
        return trace_of(
            "gandiva",
            speeds,
            submitted_s=self.submitted_s,
            curve=self.curve,
            iterations=self.length_s / speeds.step_s[self.curve, self.gpus],
            gpus_requested=self.gpus,
            gpus_max=self.gpus if gpus_max is None else gpus_max,
        )


def linear(gpus_max: int) -> Speeds:
    """A model that does an iteration a second on each GPU."""
    return interpolated({"linear": [(gpus, 1.0 / gpus) for gpus in range(1, gpus_max + 1)]})


def alike(count: int, length_s: float, curve: int = 0) -> JobColumns:
    """Jobs for one GPU that come together and are all the same."""
    ones = np.ones(count, np.int64)
    return JobColumns(np.zeros(count), np.full(count, length_s), ones, ones * curve)


def time_slicing(_inputs: Inputs) -> Finding:
    """Six jobs for one GPU on four GPUs."""
    trace = alike(6, 10 * HOUR_S).on(linear(1))
    case = Case(RunKey("gandiva", 4), Gandiva(), trace, reconfigure=SWITCH)
    minutes = list(range(0, 61, 2))
    done = iterations_at(case, [60.0 * minute for minute in minutes])
    share, lost = done[-1] / HOUR_S, 1.0 - done[-1].sum() / (4 * HOUR_S)
    ours = f"{share.min():.2f} to {share.max():.2f}"
    lines = {
        f"job {job}": list(zip(map(float, minutes), done[:, job] / 60.0, strict=True))
        for job in range(6)
    }
    return Finding(
        (
            Figure("part of a GPU that each job gets in an hour", "0.67 (4/6)", ours),
            Figure("time lost to switches, at 0.1 s each", "", f"{lost:.2%}"),
        ),
        Plot("Six jobs take turns on four GPUs", "minutes", "GPU-minutes so far", lines=lines),
    )


def noting_homes(policy: Policy, homes: dict[int, int]) -> Policy:
    """The same policy; keeps the server that each job is at home on, counted from 1."""

    def decide(snapshot: Snapshot) -> Allocation:
        answer = policy(snapshot)
        assert answer.memory is not None
        first = answer.memory[:, COLUMN.node].astype(np.int64).tolist()
        homes.update(zip(snapshot.jobs.id.tolist(), first, strict=True))
        return answer

    return decide


def sixteen_gpus(_inputs: Inputs) -> Finding:
    """Jobs of three sizes on four servers with four GPUs, and one more of each size than fits."""
    gpus = np.array(EXAMPLE_SIZES)
    came_s = np.arange(len(gpus)) * np.float64(60.0)
    jobs = JobColumns(came_s, np.full(len(gpus), 10 * HOUR_S), gpus, np.zeros_like(gpus))
    homes: dict[int, int] = {}
    policy = noting_homes(Gandiva(), homes)
    case = Case(RunKey("gandiva", 16), policy, jobs.on(linear(4)), cluster=Cluster.of(16, 4))
    before, after = iterations_at(case, [HOUR_S, 2 * HOUR_S])
    share = (after - before) / HOUR_S / gpus  # of the GPUs it asked for
    servers = [[job for job in range(len(gpus)) if homes[job] == at] for at in range(1, 5)]
    sizes = [sorted({int(gpus[job]) for job in server}) for server in servers]
    rows = [
        [
            str(at + 1),
            " · ".join(f"{job + 1} ({gpus[job]})" for job in server),
            f"{share[server].min():.2f} to {share[server].max():.2f}",
        ]
        for at, server in enumerate(servers)
    ]
    first_s = time_to_iterations(replace(case, policy=Gandiva()), 1.0)
    return Finding(
        (
            Figure("job sizes on each server", "one", " · ".join(str(len(each)) for each in sizes)),
            Figure("jobs that are queued", "0", str(int((first_s > 2 * 60.0).sum()))),
            Figure("longest wait for the first iteration", "", f"{first_s.max():.0f} s"),
        ),
        Plot(
            "What each job gets of what it requested",
            "job (GPUs it asks for)",
            "part of the time",
            bars={"gandiva": share.tolist()},
            categories=[f"{job + 1} ({size})" for job, size in enumerate(gpus.tolist())],
        ),
        ("In the table, jobs are numbered by arrival, with the GPUs they ask for.",),
        Details(["server", "jobs", "part of the time they run"], rows),
    )


def packed_gain(at: int, jobs: int) -> tuple[float, bool]:
    """How much more jobs of a model do on a GPU with packing tried, and whether it stayed."""
    trace, packed = alike(jobs, 2 * HOUR_S, at).on(packing_speeds()), [0]

    def counting(snapshot: Snapshot) -> Allocation:
        answer = Gandiva(pack_below=1.0)(snapshot)
        packed[0] += answer.packed_with is not None and bool((answer.packed_with >= 0).any())
        return answer

    case = Case(
        RunKey("gandiva", 1), counting, trace, cluster=Cluster.of(1), placement=GandivaPlacement()
    )
    packed_s = run_case(case).end_s
    turns_s = run_case(replace(case, policy=Gandiva(packing=False))).end_s
    return turns_s / packed_s - 1.0, packed[0] > 1


def packing(_inputs: Inputs) -> Finding:
    """Jobs of each model of Table 1 on one GPU: in turns, and with packing tried."""
    table = packing_table()
    found = [packed_gain(at, row.jobs) for at, row in enumerate(table)]
    words = {True: "kept", False: "undone"}
    figures = tuple(
        Figure(
            f"{row.model}, {row.busy:.0%} busy, {row.jobs} jobs",
            f"{row.gain_percent:+.0f} %, {words[row.gain_percent > 0]}",
            f"{100 * gain:+.1f} %, {words[kept]}",
        )
        for row, (gain, kept) in zip(table, found, strict=True)
    )
    return Finding(
        figures,
        Plot(
            "Packing against taking turns",
            "model",
            "mini-batches a second, % more",
            bars={
                "published, best number of jobs": [row.gain_percent for row in table],
                "ours": [100 * gain for gain, _ in found],
            },
            categories=[row.model for row in table],
        ),
        ("Rates are the paper's own: found is that a trial keeps what pays and undoes the rest.",),
    )


def grow_shrink(_inputs: Inputs) -> Finding:
    """A job that asks for one GPU of a server with four, alone at first and at last."""
    came_s, length_s = np.array([0.0, 600.0, 620.0, 640.0]), np.array([HOUR_S, 900.0, 900.0, 900.0])
    ones = np.ones(4, np.int64)
    jobs = JobColumns(came_s, length_s, ones, np.zeros(4, np.int64))
    trace = jobs.on(linear(4), np.array([4, 1, 1, 1]))
    run = run_case(
        Case(RunKey("gandiva", 4), Gandiva(), trace, reconfigure=SWITCH, keep_events=True)
    )
    assert run.events is not None
    mine = (run.events.job == 0) & (run.events.kind == SHARE)
    times_s, shares = run.events.time_s[mine].tolist(), run.events.gpus[mine].tolist()
    story = " → ".join(
        f"{gpus} at {time_s:.0f} s" for time_s, gpus in zip(times_s, shares, strict=True)
    )
    edges = [*times_s[1:], float(run.finish_s[0])]
    line: list[tuple[float, float]] = []
    for begin_s, end_s, gpus in zip(times_s, edges, shares, strict=True):
        line += [(begin_s / 60.0, gpus), (end_s / 60.0, gpus)]
    alone = run_case(
        Case(RunKey("gandiva", 4), Gandiva(grow_after_s=0.0), trace, reconfigure=SWITCH)
    )
    return Finding(
        (
            Figure("GPUs of the elastic job", "1 → 4 → 1", story),
            Figure("its completion", "", f"{run.jct_s[0]:,.0f} s"),
            Figure("the same if it may not grow", "", f"{alone.jct_s[0]:,.0f} s"),
        ),
        Plot("A job grows into idle GPUs", "minutes", "GPUs", lines={"elastic job": line}),
    )


def mixed_jobs(seed: int) -> Trace:
    """Jobs of the eight models of Table 1, more of them than the cluster can do."""
    rng = np.random.default_rng(seed)
    sizes, odds = zip(*MIX, strict=True)
    mean_gpu_s = float(np.dot(sizes, odds)) * HOUR_S * sum(LENGTH_H) / 2
    count = int(LOAD * CLUSTER_GPUS * WINDOW_H[-1] * HOUR_S / mean_gpu_s)
    submitted_s = np.sort(rng.uniform(0.0, WINDOW_H[-1] * HOUR_S, count))
    length_s = rng.uniform(LENGTH_H[0], LENGTH_H[1], count) * HOUR_S
    gpus = rng.choice(np.array(sizes), p=odds, size=count)
    speeds = packing_speeds(int(gpus.max()))
    return JobColumns(submitted_s, length_s, gpus, rng.integers(len(speeds.names), size=count)).on(
        speeds
    )


def busy_gpus(case: Case) -> FloatColumn:
    """GPUs kept busy in each hour: what was done, by what one GPU alone would be busy for it."""
    trace = case.trace
    done = iterations_at(case, [hour * HOUR_S for hour in (0, *WINDOW_H)])
    gpu_s = trace.speeds.step_s[trace.curve, trace.gpus_requested] * trace.gpus_requested
    busy: FloatColumn = np.diff(done, axis=0) @ (gpu_s * trace.speeds.places.busy[trace.curve])
    return busy / HOUR_S


def in_pairs(trace: Trace) -> Trace:
    """The same jobs if a GPU's memory holds two of them at most."""
    places = trace.speeds.places._replace(memory=np.ones(1))
    return replace(trace, speeds=replace(trace.speeds, known_places=places))


def most_of_table(below: float, jobs: int | None = None) -> float:
    """How much more GPUs do with models of Table 1, each as often, than for one job at a time.

    Those less busy than `below` are all packed with their like, up to this many jobs.
    """
    table = packing_table()
    gpus = [
        max(1.0 / (jobs or row.jobs), row.throughput) if row.busy < below else 1.0 for row in table
    ]
    return len(table) / sum(gpus) - 1.0


POLICIES: Final[Mapping[str, Policy]] = {
    "fifo": Fifo(backfill=True),
    "gandiva, turns only": Gandiva(packing=False),
    "gandiva, pairs only": Gandiva(),
    "gandiva": Gandiva(),
}


def run_of_cluster(name: str, trace: Trace) -> FloatColumn:
    """How busy a policy keeps the GPUs, by hour."""
    case = Case(
        RunKey(name, CLUSTER_GPUS),
        POLICIES[name],
        in_pairs(trace) if name == "gandiva, pairs only" else trace,
        reconfigure=SWITCH,
        cluster=Cluster.of(CLUSTER_GPUS, SERVER_GPUS),
        placement=Consolidate(),
    )
    return busy_gpus(case) / CLUSTER_GPUS


def utilisation(inputs: Inputs) -> Finding:
    """An overloaded cluster under Gandiva and under a scheduler that gives GPUs away for good."""
    traces = [mixed_jobs(seed) for seed in range(inputs.seeds)]
    runs = {name: [run_of_cluster(name, trace) for trace in traces] for name in POLICIES}
    by_hour = {name: np.mean(each, axis=0) for name, each in runs.items()}
    mean = {name: float(hours[1:].mean()) for name, hours in by_hour.items()}
    gain = [
        g[1:].mean() / f[1:].mean() - 1 for g, f in zip(runs["gandiva"], runs["fifo"], strict=True)
    ]
    turns, pairs = (mean[f"gandiva, {each} only"] / mean["fifo"] - 1 for each in ("turns", "pairs"))
    below = Gandiva.pack_below
    return Finding(
        (
            Figure("GPU utilisation, over FIFO", "+26 %", f"{100 * np.mean(gain):+.0f} %"),
            Figure(
                "the lowest and highest of the seeds", "", f"{min(gain):+.0%} to {max(gain):+.0%}"
            ),
            Figure("without packing", "", f"{turns:+.0%}"),
            Figure("with two jobs on a GPU at most", "", f"{pairs:+.0%}"),
            Figure(
                "most that Table 1 allows, two jobs on a GPU and more",
                "",
                f"{most_of_table(below, 2):+.0%} and {most_of_table(below):+.0%}",
            ),
            Figure(
                "mean utilisation, FIFO and Gandiva",
                "",
                f"{mean['fifo']:.0%} and {mean['gandiva']:.0%}",
            ),
        ),
        Plot(
            f"An overloaded cluster of {CLUSTER_GPUS} GPUs",
            "hours",
            "GPU utilisation, %",
            lines={
                name: [
                    (float(hour), 100.0 * float(busy))
                    for hour, busy in zip(WINDOW_H, hours, strict=True)
                ]
                for name, hours in by_hour.items()
            },
            errors={
                name: [100.0 * ci95(busy) for busy in np.transpose(each)]
                for name, each in runs.items()
            },
        ),
        (
            "Utilisation is counted from the second hour on, when the cluster is full.",
            f"Table 1 allows so much if all jobs that keep a GPU less than {below:.0%} busy were "
            "always packed with jobs of their own model, and each model did as much. Some of it is "
            "missing because packing begins only when there are too many jobs, a job is profiled "
            "for a minute and each step of a group is a trial of a minute; because groups mix "
            "models, which cost as much as the worst of them; and because jobs for four GPUs are "
            "queued where no server hosts their size.",
        ),
    )


def early_feedback(_inputs: Inputs) -> Finding:
    """A search: as many jobs as are to be compared, all at once, on few GPUs."""
    trace = alike(SEARCH_JOBS, SEARCH_LENGTH_S).on(linear(1))
    waits_h: dict[str, list[float]] = {}
    policies: Mapping[str, Policy] = {"fifo": Fifo(), "gandiva": Gandiva()}
    for name, policy in policies.items():
        case = Case(RunKey(name, SEARCH_GPUS), policy, trace, reconfigure=SWITCH)
        waits_h[name] = [
            float(time_to_iterations(case, part * SEARCH_LENGTH_S).mean()) / HOUR_S
            for part in SEARCH_PARTS
        ]
    sooner = [a / b for a, b in zip(*waits_h.values(), strict=True)]
    figures = tuple(
        Figure(
            f"mean time to the first {part:.0%} of each job",
            "",
            f"{fifo_h:.1f} h → {ours_h:.1f} h, {ratio:.1f}x",
        )
        for part, fifo_h, ours_h, ratio in zip(SEARCH_PARTS, *waits_h.values(), sooner, strict=True)
    )
    span = f"{max(sooner):.0f}x to {min(sooner):.1f}x, by how much of a job is looked at"
    return Finding(
        (Figure("sooner than FIFO", "up to an order of magnitude", span), *figures),
        Plot(
            f"First results of {SEARCH_JOBS} jobs on {SEARCH_GPUS} GPUs",
            "part of each job that is looked at, %",
            "hours until it is done, mean",
            lines={
                name: [(100 * part, hours) for part, hours in zip(SEARCH_PARTS, each, strict=True)]
                for name, each in waits_h.items()
            },
        ),
    )


EXPERIMENTS: Final = (
    Experiment(
        "gandiva-time-slicing",
        "Six 1-GPU jobs on four GPUs each get two thirds of one",
        f"{SOURCE}, Fig. 9",
        "Synthetic jobs; a switch costs 0.1 s, as the paper gives it (O(100 ms)).",
        time_slicing,
    ),
    Experiment(
        "gandiva-16-gpus",
        "On 16 GPUs, jobs of a size share servers and none is queued",
        f"{SOURCE}, Algorithm 1 and Fig. 7",
        "The figure's own jobs are not known to us: ours are eleven of 1, 2 and 4 GPUs that come a "
        "minute apart, one more of each size than fits.",
        sixteen_gpus,
    ),
    Experiment(
        "gandiva-packing",
        "Packing stays where the jobs do more together than in turns, and is undone elsewhere",
        f"{SOURCE}, Table 1",
        "The paper packs as many jobs on a P40 as is best, and does not say how many. Ours are as "
        "many as its rates prove, since no job is faster than alone: the packed rate over that of "
        "one job, rounded up, and at least two. What a group costs follows from the same rates. "
        "Jobs are two hours long, and every model is tried, however busy it keeps the GPU.",
        packing,
    ),
    Experiment(
        "gandiva-grow-shrink",
        "A job grows into idle GPUs of its server and gives them back at once",
        f"{SOURCE}, Fig. 11",
        "A synthetic job that scales linearly; it grows when GPUs were idle for a minute, a time "
        "that is ours.",
        grow_shrink,
    ),
    Experiment(
        "gandiva-cluster",
        "Aggregate utilisation of a 180-GPU cluster",
        f"{SOURCE}, Fig. 15",
        "The paper's jobs and their mix are not published: ours are an even mix of the models of "
        "Table 1, 70 % for one GPU, half an hour to three hours long, 1.5 times what the cluster "
        "can do, on 45 servers with four GPUs. FIFO with backfill stands for the paper's baseline. "
        "A switch costs 0.1 s, a move to another server 1.5 s for one GPU to 35 s for eight, as "
        "published; distance costs nothing. Table 1 has jobs of one model: we assume that a job "
        "takes 1/(1 + gain) of what a GPU can do for its model, that models side by side slow each "
        "other down as the worst of them does its like, and that memory holds as many jobs as the "
        "packed rates prove and no more. Which jobs the paper's cluster packed is not known.",
        utilisation,
    ),
    Experiment(
        "gandiva-early-feedback",
        "A hyper-parameter search sees the first results of its jobs an order of magnitude sooner",
        f"{SOURCE}, abstract",
        "The paper times whole searches, which stop bad configurations early. We time the first "
        "iterations: 60 equal jobs of four hours on eight GPUs, against FIFO.",
        early_feedback,
    ),
)
