"""What it costs that jobs share one GPU: suspended within a pool, and taking turns.

python -m benchmarks.sharing --json                     on a GPU, 4 GB of state
python -m benchmarks.sharing --cpu --state-mb 16        on one CPU slot

suspend  from the request until the GPU's memory is free but for CUDA contexts, and from the
         request to resume until the first step: parked in host memory, and beside it the way
         through the disk, with new workers (as a drained node requires)
turns    two jobs and six, with turns of `--quantum` seconds, as if only one of them fitted
         into the GPU's memory: steps of all of them together against those of one job alone,
         and how equal their parts are
resident the same for two jobs that stay in the GPU's memory between their turns
search   a search of `--trials` jobs: until each of them has made its first 100 steps, taking
         turns and one after the other

Each part prints what it found to stderr when it is done.
"""

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from benchmarks.elastic.job import machine, scratch
from benchmarks.elastic.noted_job import awaited
from benchmarks.elastic.shared_device import GpuMemory, SharedDevice, shared_device, used_bytes

ROUNDS: Final = 3
SLACK_BYTES: Final = 32 << 20
SETTLED: Final = 200  # steps, after which a job has pinned its memory and measured its passes
FIRST_STEPS: Final = 100
PARTS: Final = ("suspend", "turns", "resident", "search")


def suspend(device: SharedDevice, options: argparse.Namespace) -> dict[str, Any]:
    """Suspend and resume a job, in memory and through the disk."""
    device.decide_by("fifo")
    empty = 0 if options.cpu else used_bytes()
    job = device.submit("job", options.state_mb)
    device.await_steps("job", 20)
    steps = device.steps("job")[5:]
    step_s = (steps[-1] - steps[0]) / (len(steps) - 1)
    rounds = [round_trip(device, job, cpu=options.cpu) for _ in range(ROUNDS)]
    about = device.client.get(f"/jobs/{job}")
    disk = through_disk(device, job)
    device.end(job)
    warm = rounds[1:]
    median = {key: statistics.median(each[key] for each in warm) for key in warm[0]}
    return {
        "state_mb": options.state_mb,
        "step_s": step_s,
        "first": rounds[0],
        "later": median,
        "left_mib": None if options.cpu else (rounds[-1]["floor"] - empty) / 2**20,
        "disk_s": disk,
        "job": {"pause_s": about["last_pause_s"]},
    }


def round_trip(device: SharedDevice, job: int, *, cpu: bool) -> dict[str, float]:
    """Suspend a job and resume it."""
    found: dict[str, float] = {}
    begin_s = time.monotonic()
    if cpu:
        device.client.post(f"/jobs/{job}:suspend")
        awaited(lambda: not device.node["used"])
        found["free_s"] = time.monotonic() - begin_s
    else:
        with GpuMemory() as memory:
            device.client.post(f"/jobs/{job}:suspend")
            awaited(lambda: device.state(job) == "SUSPENDED")
            time.sleep(0.5)
        found["floor"] = floor = memory.seen[-1][1]
        found["free_s"] = memory.freed_after(begin_s, floor + SLACK_BYTES)
    awaited(lambda: device.state(job) == "SUSPENDED")
    found["durable_s"] = time.monotonic() - begin_s
    before = len(device.steps("job"))
    begin_s = time.monotonic()
    device.client.post(f"/jobs/{job}:resume")
    awaited(lambda: len(device.steps("job")) > before)
    found["first_step_s"] = device.steps("job")[before] - begin_s
    device.await_steps("job", 10)
    return found


def through_disk(device: SharedDevice, job: int) -> float:
    """Have a job leave its node and come back; give the seconds without a step."""
    node = device.node["name"]
    device.client.post(f"/nodes/{node}:drain")
    awaited(lambda: device.state(job) in ("PENDING", "PREEMPTED"))
    before = len(device.steps("job"))
    last_s = device.steps("job")[-1]
    device.client.post(f"/nodes/{node}:undrain")
    awaited(lambda: len(device.steps("job")) > before)
    away_s = device.steps("job")[before] - last_s
    device.await_steps("job", 10)
    return away_s


def turns(
    device: SharedDevice, options: argparse.Namespace, numbers: Sequence[int], where: str
) -> list[dict[str, Any]]:
    """Have so many jobs take turns, and compare them with one of them alone, before and after."""
    device.decide_by(f"gandiva:quantum_s={options.quantum}")
    first, found = f"{where}0", []
    jobs = {first: device.submit(first, options.state_mb, uses=options.uses)}
    device.await_steps(first, SETTLED)
    alone = [rate(device, first, options.quantum / 2)]
    for number in numbers:
        for name in [f"{where}{each}" for each in range(len(jobs), number)]:
            jobs[name] = device.submit(name, options.state_mb, uses=options.uses)
        steps = in_turns(device, list(jobs), -(-options.turns // number))
        shares = device.client.get(f"/jobs/{jobs[first]}")["turns"]
        found.append((steps, shares["share"] if shares else None))
    device.end(*list(jobs.values())[1:])
    device.await_steps(first, 20)
    alone.append(rate(device, first, options.quantum / 2))
    alone_per_s = statistics.fmean(alone)
    device.end(jobs[first])
    return [
        {
            "jobs": len(steps.counts),
            "quantum_s": options.quantum,
            "where": where,
            "alone_steps_per_s": alone,
            "steps_per_s": sum(steps.counts) / steps.seconds,
            "ratio": sum(steps.counts) / steps.seconds / alone_per_s,
            "switch_s": steps.switch_s,
            "switching": steps.switching,
            "first_in_turn": steps.first_per_s / alone_per_s,
            "parts": [each / sum(steps.counts) for each in steps.counts],
            "off_equal": max(abs(n / statistics.fmean(steps.counts) - 1.0) for n in steps.counts),
            "share_of_first": share,
        }
        for steps, share in found
    ]


class Steps(NamedTuple):
    """What jobs that take turns have done in whole rounds."""

    seconds: float
    counts: list[int]  # by job
    switch_s: float  # between the last step of a turn and the first one of the next, the median
    switching: float  # the part of the time in which no job makes steps
    first_per_s: float  # steps per second of the first job while it has its turn


def in_turns(device: SharedDevice, names: Sequence[str], rounds: int) -> Steps:
    """Count the steps of jobs in some rounds.

    The round after the last of them has come is left out: jobs that came sooner wait in it until
    the others have had as much.
    """
    awaited(lambda: all(len(device.steps(name)) > 20 for name in names), pause_s=0.1)
    since_s, left_out = time.monotonic(), len(names) - 1
    turns_wanted = left_out + rounds * len(names) + 1
    look = partial(switches, device, names, since_s)
    awaited(lambda: len(look()) >= turns_wanted, pause_s=0.5, limit_s=600.0)
    seen = look()[left_out:turns_wanted]
    begin_s, end_s = seen[0].first_s, seen[-1].first_s
    counts = [sum(begin_s <= at_s < end_s for at_s in device.steps(name)) for name in names]
    turns = [(each.name, each.first_s, after.last_s) for each, after in itertools.pairwise(seen)]
    in_turn_s = sum(last_s - first_s for _, first_s, last_s in turns)
    own_s = sum(last_s - first_s for name, first_s, last_s in turns if name == names[0])
    own_turns = sum(name == names[0] for name, _, _ in turns)
    return Steps(
        seconds=end_s - begin_s,
        counts=counts,
        switch_s=statistics.median(each.first_s - each.last_s for each in seen),
        # The first step of a turn is part of what lies between two turns.
        switching=1.0 - in_turn_s * sum(counts) / (sum(counts) - len(turns)) / (end_s - begin_s),
        first_per_s=(counts[0] - own_turns) / own_s,
    )


class Switch(NamedTuple):
    """From one turn to the next."""

    last_s: float  # when the last step of the turn ended
    name: str  # of the job that has the next one
    first_s: float  # when its first step ended


def switches(device: SharedDevice, names: Sequence[str], since_s: float) -> list[Switch]:
    """Tell when turns have followed each other."""
    steps = sorted((at_s, name) for name in names for at_s in device.steps(name))
    later = [(at_s, name) for at_s, name in steps if at_s >= since_s]
    return [
        Switch(last_s, name, first_s)
        for (last_s, before), (first_s, name) in itertools.pairwise(later)
        if name != before
    ]


def rate(device: SharedDevice, name: str, seconds: float) -> float:
    """Count the steps of a job alone for a while; give how many there are in a second."""
    before = len(device.steps(name))
    time.sleep(seconds)
    device.await_steps(name, 2)
    steps = device.steps(name)[before:]
    return (len(steps) - 1) / (steps[-1] - steps[0])


def search(device: SharedDevice, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Run the jobs of a search, one after another and by turns."""
    return {
        "one_after_another": first_steps(device, options, "fifo", "row"),
        "turns": first_steps(device, options, f"gandiva:quantum_s={options.trial_quantum}", "turn"),
    }


def first_steps(
    device: SharedDevice, options: argparse.Namespace, policy: str, prefix: str
) -> dict[str, float]:
    """Run the jobs of a search by a policy; give when each has made its first steps."""
    device.decide_by(policy)
    begin_s = time.monotonic()
    names = [f"{prefix}{number}" for number in range(options.trials)]
    jobs = [device.submit(each, options.trial_mb, steps=options.trial_steps) for each in names]
    while not all(len(device.steps(name)) >= FIRST_STEPS for name in names):
        time.sleep(0.1)
    firsts = [device.steps(name)[FIRST_STEPS - 1] - begin_s for name in names]
    device.end(*jobs)
    return {"all_s": max(firsts), "mean_s": statistics.fmean(firsts)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what was asked for, in one pool as far as it can be."""
    found: dict[str, Any] = {"machine": machine(), "device": "cpu" if options.cpu else "gpu"}
    parts: dict[str, Callable[[SharedDevice], Any]] = {
        "suspend": lambda device: suspend(device, options),
        "resident": lambda device: turns(device, options, options.jobs[:1], "resident"),
        "search": lambda device: search(device, options),
        "turns": lambda device: turns(device, options, options.jobs, "moved_out"),
    }
    # In the second pool no two jobs fit into the GPU's memory together.
    for pool, gpu_memory in ((("suspend", "resident", "search"), ""), (("turns",), "0")):
        if not (wanted := [name for name in pool if name in options.parts]):
            continue
        env = {"CODDL_GPU_MEMORY": gpu_memory}
        with scratch() as folder, shared_device(folder, cpu=options.cpu, env=env) as device:
            for name in wanted:
                begin_s = time.monotonic()
                found[name] = parts[name](device)
                took = f"{name}, {time.monotonic() - begin_s:.0f} s"
                print(f"{took}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    return found


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--cpu", action="store_true", help="on a CPU slot")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--state-mb", type=int, default=4000)
    parser.add_argument(
        "--uses",
        type=int,
        help="of each sample in a step of a job that takes turns (default: 8 on a GPU, so that it "
        "and not the host is what steps wait for, or 1)",
    )
    parser.add_argument("--quantum", type=float, default=10.0, help="seconds of a turn")
    parser.add_argument(
        "--jobs", type=int, nargs="+", default=(2, 6), help="that take turns, ascending"
    )
    parser.add_argument("--turns", type=int, default=2, help="to count at least, in whole rounds")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--trial-mb", type=int, default=1000, help="of state, of each trial")
    parser.add_argument("--trial-steps", type=int, default=1000, help="of each trial")
    parser.add_argument("--trial-quantum", type=float, default=1.0)
    options = parser.parse_args(words)
    if options.uses is None:
        options.uses = 1 if options.cpu else 8
    return options


def main() -> None:
    """Measure, and print."""
    options = parsed()
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    if part := found.get("suspend"):
        print(f"{part['state_mb']} MB of state, {part['step_s']:.3f} s per step")
        for name in ("first", "later"):
            each = part[name]
            print(f"  {name}: free after {each['free_s']:.2f} s, on disk {each['durable_s']:.2f}")
            print(f"  {name}: first step {each['first_step_s']:.2f} s after resume")
        print(f"  through the disk: {part['disk_s']:.2f} s without a step")
    for part in [*found.get("turns", ()), *found.get("resident", ())]:
        where = part["where"].replace("_", " ")
        print(f"{part['jobs']} jobs, {where} between turns of {part['quantum_s']:g} s:")
        print(
            f"  {part['ratio']:.1%} of one alone, at most {part['off_equal']:.1%} off equal parts"
        )
        print(
            f"  {part['switching']:.1%} of the time between turns; in its turns the first job is "
            f"at {part['first_in_turn']:.1%} of its speed alone"
        )
    if part := found.get("search"):
        ours, fifo = part["turns"]["all_s"], part["one_after_another"]["all_s"]
        print(f"first {FIRST_STEPS} steps of all trials: {ours:.0f} s; in sequence {fifo:.0f} s")


if __name__ == "__main__":
    main()
