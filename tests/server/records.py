"""A record of every kind, and pools to fold."""

from coddl.core.node_count import NodeBounds
from coddl.core.pool import records as r
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.waiting import Waiting
from tests.core.pool.profiles import PROFILE

CPU = (r.Device(0, "cpu"), r.Device(1, "cpu"))


def spec(name: str = "bert", **changes: object) -> JobSpec:
    """Make a job's spec."""
    fields: dict[str, object] = {"name": name, "launch": Launch(argv=("train.py",)), "gpus_max": 2}
    return JobSpec(**{**fields, **changes})  # type: ignore[arg-type]  # as a test wants it


ONE_OF_EACH: tuple[r.Record, ...] = (
    r.JobSubmitted(1, spec(step_s={1: 0.5, 2: 0.3}, user="ü")),
    r.JobCancelled(1, "ann"),
    r.JobSuspended(1, "ann"),
    r.JobResumed(1, "ann"),
    r.JobBounded(1, 1, 4, "ann"),
    r.JobPrioritised(1, -3, "ann"),
    r.JobsForgotten((1, 2)),
    r.NodeDrained("n1", "ann", 90.0, "its time limit is near"),
    r.NodeUndrained("n1", "ann"),
    r.NodeForgotten("n1", "ann"),
    r.PolicyChosen("fifo:backfill=true", "ann"),
    r.NodeJoined("n1", "boot", "10.0.0.1", (r.Device(0, "H200", "GPU-1", 1 << 40),), (3,)),
    r.NodeLost("n1", "boot", "its lease ran out"),
    r.EngineBounded("ray", NodeBounds(0, 8, 4)),
    r.NodeAcquired("ray-1"),
    r.NodeLeft("ray-1", "ray no longer has it"),
    r.NodesWanted(2, "1 job can use 8 GPUs"),
    r.RunPrepared(1, 2, None, None, 256, 4 << 30, 1 << 30, 16, 1 << 31, 32),
    r.SliceDidNotFit(1, 2, 2, "a slice of 256 samples does not fit in memory", "predicted", 256),
    r.RunProfiled(1, 2, PROFILE),
    r.LossMeasured(1, 2, 16, 0.25),
    r.RunStepped(1, 2, 1),
    r.RunChanged(1, 2, 0, "resized", 1, (0, 1), 17, 0.05, 1.5),
    r.RunStalled(1, 2, 17, 60.5),
    r.RunUnsaved(1, 2, 17, r.Trouble("it can't be saved", "the disk is full", "free space")),
    r.RunEnded(1, 2, "failed", 17, 3, r.Trouble("it failed", "exit code 3", "the log")),
    r.RunEnded(1, 2, "retired", 17, parked=(0, 1), parked_bytes=4 << 30, park_s=0.2),
    r.SlotFreed(0, 1),
    r.ParkingEnded(1, "node n1 no longer has them"),
    r.StartOverdue(1, 2, 1800.0),
    r.Decided(
        policy="afs-p",
        seed=7,
        gpus=2,
        why="a job was submitted",
        targets={1: r.Target((0, 1), "it scales best")},
        waiting={2: Waiting("Resources", "no devices are left")},
        rows=(r.DecisionRow(1, 0, 1, 2, None, {1: 0.5}, 2),),
        memory={1: (1.0, 2.5)},
        wake_at_s=99.5,
    ),
    r.DecisionFailed(
        policy="mine.py:Mine",
        placement="consolidate",
        why="a job was submitted",
        trouble=r.Trouble("policy mine.py:Mine failed", "KeyError: 7", "coddl policy NAME"),
        targets={1: r.Target((), "suspended by ann")},
        waiting={2: Waiting("PolicyFailed", "policy mine.py:Mine failed: KeyError: 7")},
    ),
    r.Aimed(1, 2, 3, (0, 1), "n1", "it scales best", adopt=True, precheck=False),
)
