"""Runs one decision at the start: compiling takes seconds, the first time."""

from coddl.core.errors import UserError
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.records import Device, JobSubmitted, NodeJoined, PolicyChosen
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.core.scheduler import Stability


def warm_up(chosen: PolicyChosen, stability: Stability) -> None:
    """Decide once, by a policy and a placement, for a pool that does not exist."""
    trial = ControlPlane(Pool(), stability)
    devices = (Device(0, "cpu"), Device(1, "cpu"))
    spec = JobSpec(name="trial", launch=Launch(argv=("trial.py",)), gpus_max=2)
    try:
        trial.take(chosen, 0.0)
    except UserError:
        return  # of another version, and unknown here: the first decision will say so
    trial.take(NodeJoined("trial", "trial", "", devices), 0.0)
    trial.handle(JobSubmitted(1, spec), 0.0)
