"""Runs one decision at the start: compiling takes seconds, the first time."""

from coddl.core.errors import UserError
from coddl.core.pool.control import ControlPlane
from coddl.core.pool.records import Device, JobSubmitted, NodeJoined, PolicyChosen
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.core.registry import Registry
from coddl.core.scheduler import Stability


def warm_up(chosen: PolicyChosen, stability: Stability, registry: Registry) -> None:
    """Decide once, by a policy and a placement, for a pool that does not exist.

    Raises UserError if there is none such, or if it is a plug-in's and fails at that.
    """
    trial = ControlPlane(Pool(), stability, registry=registry)
    devices = (Device(0, "cpu"), Device(1, "cpu"))
    spec = JobSpec(name="trial", launch=Launch(argv=("trial.py",)), gpus_max=2)
    trial.take(chosen, 0.0)
    trial.take(NodeJoined("trial", "trial", "", devices), 0.0)
    trial.handle(JobSubmitted(1, spec), 0.0)
    if (trouble := trial.pool.policy_trouble) is not None:
        raise UserError(
            f"the pool cannot follow policy {trial.pool.policy}, placement {trial.pool.placement}",
            f"in a trial with one job, {trouble.sentence}",
            "coddl.testing.PolicyContract on the policy, or PlacementContract on the placement",
        )
