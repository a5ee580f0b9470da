"""How many resizes a job that was never seen takes to reach its share, with estimates and without.

    python -m benchmarks.probing --json

A real server and three agents with `--slots` CPU slots each, in network namespaces (needs root)
whose lines are limited to `--mbit`. One elastic job has all slots when a second one comes, which
was never seen before: more workers of it than a node has slots are no faster, because they exchange
their gradients between nodes. Both wait instead of computing, and really exchange.

inspected    the links were measured by `coddl inspect` before: the pool estimates
not          they were not: the pool assumes that a job scales until it has tried
truth        both jobs are then given all sizes in turn, and the policy is asked with what was
             measured: that is the share that the job should have

A resize to another size than that share is a probing one; without the truth, one to another size
than the last. Each run prints what it found to stderr.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.elastic.job import machine, scratch
from coddl.agent.inspection.store import store_inspection
from coddl.core.pool import records as r
from coddl.core.registry import policy_from
from coddl.core.speed.inspection import Inspection
from coddl.testing import job as job_row
from coddl.testing import snapshot_of
from tests.e2e.netns import Cluster, Machine, why_not
from tests.e2e.pool import NODES, PATIENCE_S, Pool, environment

POLICY: Final = "afs-p:tie=keep,lease_h=0.25"  # a pool's own
PORT: Final = 7434
LIMIT_S: Final = 180.0
OLD: Final = ("--batch", "60", "--sample-s", "0.02")
NEW: Final = ("--batch", "48", "--sample-s", "0.01", "--gradient-mb", "1")


POOLS: Final = ("inspected", "not")  # whether links are known


def shape(machines: Sequence[Machine], mbit: int) -> None:
    """Limit what leaves machines."""
    rate = ["rate", f"{mbit}mbit", "burst", "64kb", "latency", "50ms"]
    for each in machines:
        words = each.command("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *rate)
        subprocess.run(words, check=True, capture_output=True)


def inspected(folder: Path, options: argparse.Namespace) -> Inspection:
    """Measure the links of the three machines with `coddl inspect`."""
    cluster = Cluster(NODES)
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.open()
        machines = list(cluster.nodes.values())
        shape(machines, options.mbit)
        states = [folder / name for name in NODES]
        own = ("--slots", str(options.slots))
        _ended(_inspecting(machines[0], states[0], *own))
        for state in states[1:]:  # the same hardware, which is measured alone
            shutil.copytree(states[0], state)
        at = f"{machines[0].address}:{PORT}"
        words = [["--listen", at, "--nodes", str(len(NODES))], *[["--join", at]] * 2]
        meeting = [
            _inspecting(each, state, *own, *more)
            for each, state, more in zip(machines, states, words, strict=True)
        ]
        found = [_ended(each) for each in meeting]
    return Inspection.from_data(found[0])


def _inspecting(where: Machine, state: Path, *words: str) -> "subprocess.Popen[str]":
    inspect = [sys.executable, "-m", "coddl", "inspect", "--quick", "--json"]
    env = environment(CODDL_STATE_DIR=str(state), CODDL_INSPECT_CODE="of the benchmark")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(where.command(*inspect, *words), env=env, text=True, **pipes)  # type: ignore[call-overload,no-any-return] # pipes


def _ended(process: "subprocess.Popen[str]") -> Any:  # Any: JSON
    out, err = process.communicate(timeout=PATIENCE_S)
    if process.returncode:
        raise SystemExit(f"coddl inspect failed: {err}")
    return json.loads(out)


@contextlib.contextmanager
def pool_of(
    folder: Path, options: argparse.Namespace, inspection: Inspection | None
) -> Iterator[Pool]:
    """Run a pool, whose nodes were inspected or not."""
    pool = Pool(folder, slots=options.slots)
    if inspection is not None:
        store_inspection(pool.state, inspection)
    with pool:
        shape(list(pool.cluster.nodes.values()), options.mbit)
        pool.cli("policy", POLICY)
        yield pool


def sizes(pool: Pool, job: int) -> list[int]:
    """Give the sizes that a job has had, one after the other."""
    found: list[int] = []
    for change in pool.told(r.RunChanged, job):
        if not found or found[-1] != len(change.slots):
            found.append(len(change.slots))
    return found


def settled(pool: Pool, jobs: Sequence[int], still_s: float) -> None:
    """Wait until no job has changed for some time, and the speeds they have are measured."""
    until_s, since_s, before = time.monotonic() + LIMIT_S, time.monotonic(), list[Any]()
    while time.monotonic() < until_s:
        views = [pool.job(job) for job in jobs]
        now = [(view["gpus"], view["resizes"]) for view in views]
        is_known = all(
            each["source"] == "measured"
            for view in views
            for each in view["speeds"]
            if each["gpus"] == view["gpus"]
        )
        if now != before or not is_known:
            before, since_s = now, time.monotonic()
        elif time.monotonic() - since_s >= still_s:
            return
        time.sleep(0.2)
    raise SystemExit(f"shares were not stable within {LIMIT_S:g} s")


def arrive(pool: Pool, options: argparse.Namespace) -> dict[str, Any]:
    """Have a job come beside another; tell how it came to its share."""
    total = len(NODES) * options.slots
    old = pool.submit(*OLD, script="waiting.py", name="old", gpus=f"1..{total}")
    pool.wait_size(old, total)
    settled(pool, [old], options.still_s / 2)
    old_before = len(sizes(pool, old))
    begin_s = time.monotonic()
    new = pool.submit(*NEW, script="waiting.py", name="new", gpus=f"1..{total}")
    pool.wait_size(new, 1)
    settled(pool, [old, new], options.still_s)
    seen = sizes(pool, new)
    view = pool.job(new)
    found = {
        "sizes": seen,
        "resizes": len(seen) - 1,
        "trials": view["trials"],
        "other_sizes": sizes(pool, old)[old_before - 1 :],
        "seconds": round(time.monotonic() - begin_s - options.still_s, 1),
        "speeds": view["speeds"],
        "jobs": [old, new],
    }
    say(f"  sizes {seen}, the other job {found['other_sizes']}, {found['seconds']} s")
    return found


def truth(pool: Pool, old: int, new: int) -> dict[str, Any]:
    """Measure both jobs at all sizes, and ask the policy."""
    total = len(pool.nodes) * pool.slots
    for gpus in range(1, total):
        for job, size in ((old, total - gpus), (new, gpus)):
            bound(pool, job, size, size)
        for job, size in ((old, total - gpus), (new, gpus)):
            pool.wait_size(job, size)
            pool.wait_steps(job, 15)
    curves = {}
    for job in (old, new):
        bound(pool, job, 1, total)
        rows = [each for each in pool.job(job)["speeds"] if each["source"] == "measured"]
        curves[job] = {each["gpus"]: each["step_s"] for each in rows}
    return {"share": afs_share(curves[old], curves[new], total), "step_s": curves[new]}


def bound(pool: Pool, job: int, least: int, most: int) -> None:
    """Set the bounds of a job."""
    body = {"gpus_min": least, "gpus_max": most}
    pool.ask(lambda client: client.patch(f"/jobs/{job}", body))


def afs_share(old: Mapping[int, float], new: Mapping[int, float], total: int) -> int:
    """What the policy gives to a job, if its speeds and those of the other are known."""
    rows = [
        job_row(name, 1, total, step_s=_filled(curve, total), holds=holds, started_s=0.0)
        for name, curve, holds in (("old", old, total - 1), ("new", new, 1))
    ]
    return int(policy_from(POLICY)(snapshot_of(total, rows)).gpus[1])


def _filled(curve: Mapping[int, float], total: int) -> list[float]:
    """Step times by size; what was not measured is as the next smaller one."""
    return [curve[max(n for n in curve if n <= gpus)] for gpus in range(1, total + 1)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what was asked for."""
    found: dict[str, Any] = {"mbit": options.mbit, "slots": options.slots}
    found |= {"inspected": [], "not": []}
    with scratch() as folder:
        say("coddl inspect")
        inspection = inspected(folder / "inspect", options)
        found["links"] = {
            name: {"gb_s": link.gb_s, "latency_us": link.latency_us, "call_us": link.call_us}
            for name, link in inspection.links.items()
        }
        say(f"  {found['links']}")
        for number in range(options.rounds):
            for name, known in {"inspected": inspection, "not": None}.items():
                if name not in options.pools:
                    continue
                say(f"{name}, round {number + 1}")
                here = folder / f"{name}-{number}"
                here.mkdir()
                with pool_of(here, options, known) as pool:
                    found[name].append(arrive(pool, options))
                    old, new = found[name][-1].pop("jobs")
                    if options.truth and number == 0 and name == "not":
                        found["truth"] = truth(pool, old, new)
                        say(f"truth: {found['truth']}")
                    pool.cli("cancel", str(old), str(new), "--wait")
    for each in [*found["inspected"], *found["not"]]:
        share = found["truth"]["share"] if options.truth else each["sizes"][-1]
        each["probing"] = sum(size != share for size in each["sizes"][1:])
        each["reached"] = each["sizes"][-1] == share
    return found


def summary(found: Mapping[str, Any]) -> list[str]:
    """Say in lines what was found."""
    lines = []
    if "truth" in found:
        total = len(NODES) * found["slots"]
        lines.append(f"share by measured speeds: {found['truth']['share']} of {total} slots")
    for name, words in (("inspected", "with estimates"), ("not", "without")):
        for each in found[name]:
            path = " → ".join(map(str, each["sizes"]))
            counts = f"{each['resizes']} resizes, {each['probing']} of them probing"
            end = "" if each["reached"] else ", and its share is not reached"
            lines.append(f"{words:<15} {path}: {counts}{end}; stable after {each['seconds']} s")
    return lines


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--slots", type=int, default=4, help="of each of three nodes")
    options.add_argument("--mbit", type=int, default=200)
    options.add_argument("--pools", nargs="+", choices=POOLS, default=POOLS, help="default: both")
    options.add_argument("--still-s", type=float, default=20.0, help="without a resize: stable")
    options.add_argument("--no-truth", dest="truth", action="store_false")
    options.add_argument("--json", action="store_true")
    return options.parse_args(words)


def main() -> None:
    """Measure, and print what was found."""
    options = parsed()
    if because := why_not():
        raise SystemExit(because)
    found = measure(options)
    if options.json:
        print(json.dumps({**found, "machine": machine()}, indent=2))
        return
    print("\n".join(summary(found)))


if __name__ == "__main__":
    main()
