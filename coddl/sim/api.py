"""`coddl.simulate`: the simulator as a Python function."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from coddl.core.cluster import Cluster
from coddl.core.errors import UserError
from coddl.core.node_count import IDLE_S, START_S
from coddl.core.parameter_server.costs import Mode
from coddl.core.placement.placement import Placement
from coddl.core.policies.policy import Policy
from coddl.core.reconfigure import Reconfigure, reconfigure_of
from coddl.core.scheduler import Stability
from coddl.sim.known_speeds import KnownSpeeds
from coddl.sim.profiled import profiled_from
from coddl.sim.study import DEFAULT_POLICIES, NodeSpec, Study, StudySpec, study
from coddl.traces.trace import Oversize, Trace

COSTS: Final = "coddl costs -o json > costs.json"


def simulate(
    trace: str | Path | Trace | None = None,
    policies: str | Policy | Sequence[str | Policy] = DEFAULT_POLICIES,
    *,
    gpus: int | Sequence[int] = (),
    cluster: str | Cluster | Sequence[str | Cluster] = (),
    nodes: str | int | Sequence[str | int] = (),
    gpus_per_node: int = 8,
    node_start_s: float = START_S,
    node_idle_s: float = IDLE_S,
    placement: str | Placement | Sequence[str | Placement] = (),
    first: int | None = None,
    seeds: int = 1,
    load: float | Sequence[float] = 1.0,
    vc: str | None = None,
    speeds: str | Path | None = None,
    profiles: Mapping[str, str | Path] | None = None,
    links: str | Path | None = None,
    servers: Mode | None = None,
    oversize: Oversize = "error",
    reconfigure: str = "none",
    cool_down_s: float = 0.0,
    min_runtime_s: float = 0.0,
    reserve_s: float = 0.0,
    quotas: str = "none",
    error: str = "",
    known_speeds: KnownSpeeds = "true",
    failures: str = "none",
    prerun: bool = False,
    events: bool = False,
) -> Study:
    """Run policies on a trace and return the results as columns.

    `trace` is a file, a generator (poisson, poster, tiresias), a Trace, or None for the small trace
    in the package. `gpus` is 64 by default, 512 for poster. `vc="all"` gives each queue its own
    cluster. `events=True` keeps the events of each run, in `.runs`. `cool_down_s` and
    `min_runtime_s` limit how often jobs are resized, and for `reserve_s` a job that waits for GPUs
    which were freed for it keeps its claim, as in a live pool (10, 0 and 10 there). With
    `prerun`, as there, a job gets its minimum first, and more once it has made a step.

    To simulate placement, give a `cluster` ("16x4", a file, a Cluster) instead of `gpus`, and a
    `placement` if not "consolidate". Or give `nodes` ("2..32"; several to compare them), which come
    and go with the work: each has `gpus_per_node` GPUs, is ready `node_start_s` seconds after it is
    asked for, and is given back when it was not needed for `node_idle_s`.

    `first` limits the number of jobs. `quotas` ("equal", "demand", "a=32,b=16"), `error`
    ("length=0.3,speed=0.1") and `failures` ("philly") are as on the command line. With `servers`
    ("sync", "async") jobs train with parameter servers. `known_speeds` ("true", "estimated",
    "adjusted", "visited") is what the scheduler knows of speeds; jobs run at the true ones.
    `profiles` ({"bert": "profile.json"}) are models whose speeds are replayed on `links`, a file of
    `coddl inspect --save`.

        results = coddl.simulate("jobs.csv.gz", ["afs-l", "srtf"], gpus=64, vc="ed69ec")
        results["avg_jct_s"]        # an array, one value per policy
        pandas.DataFrame(results)   # the whole table
    """
    ranges = [nodes] if isinstance(nodes, str | int) else nodes
    named = [policies] if isinstance(policies, str) or callable(policies) else list(policies)
    spec = StudySpec(
        workload=trace,
        policies=named,
        gpus=list(gpus) if isinstance(gpus, Sequence | np.ndarray) else [gpus],
        clusters=[cluster] if isinstance(cluster, str | Cluster) else list(cluster),
        nodes=NodeSpec(tuple(map(str, ranges)), gpus_per_node, node_start_s, node_idle_s),
        placements=[placement]
        if isinstance(placement, str) or callable(placement)
        else list(placement),
        first=first,
        loads=list(load) if isinstance(load, Sequence | np.ndarray) else [load],
        seeds=seeds,
        queue=vc,
        speeds=speeds,
        profiled=profiled_from(profiles or {}, links),
        servers=servers,
        oversize=oversize,
        reconfigure=reconfigure_from(reconfigure),
        stability=Stability(cool_down_s, min_runtime_s, reserve_s),
        quotas=quotas,
        error=error,
        known_speeds=known_speeds,
        failures=failures,
        prerun=prerun,
        keep_events=events,
    )
    return study(spec)


def reconfigure_from(spec: str) -> Reconfigure:
    """Read `none`, `stall:S`, `stall:S,MOVE_1_S,MOVE_8_S`, `serial:S`,
    `concurrent:PREPARE_S,PAUSE_S` or `uncancelled:PREPARE_S,PAUSE_S`; or a file of `coddl costs`.
    """
    return reconfigure_of(_measured(Path(spec)) if spec.endswith(".json") else spec)


def _measured(path: Path) -> str:
    """Read what a pool has measured."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["reconfigure"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        because = error.strerror if isinstance(error, OSError) else "it is no output of coddl costs"
        raise UserError(f"{path} cannot be read", f"{because}", COSTS) from None
    if not isinstance(found, str):
        because = "no job of that pool has given up its GPUs and come back"
        raise UserError(f"{path} contains no costs", because, "stall:0.2, or coddl costs later on")
    return found
