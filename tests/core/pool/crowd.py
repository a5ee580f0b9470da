"""Pools with more jobs than GPUs, whose policy has jobs take turns."""

from coddl.core.pool import records as r
from coddl.core.scheduler import Stability
from tests.core.pool.story import Story

GIB = 1 << 30
POLICY = "gandiva"  # turns of 60 s


def pool_of(
    *devices: int,
    parking_bytes: int = 1000 * GIB,
    policy: str = POLICY,
    stability: Stability | None = None,
) -> Story:
    """Give a pool whose policy lets jobs take turns."""
    story = Story(*devices, parking_bytes=parking_bytes, stability=stability)
    story.happen(r.PolicyChosen(policy, "ada", "consolidate"))
    return story


def crowd(story: Story, jobs: int, gradients: tuple[int, int] = (0, 0), **fields: int) -> list[int]:
    """Let jobs of one GPU come, one after the other, and train."""
    found = []
    for _ in range(jobs):
        job = story.submit(1, 1, **fields)  # type: ignore[arg-type] # a priority
        found.append(job)
        story.train(*([job] if story.job(job).granted else []), gradients=gradients)
    return found


def users(story: Story) -> dict[int, tuple[int, ...]]:
    """Name the jobs that may use each slot, as its node is told."""
    return {
        slot: tuple(run.job for run in runs)
        for node in story.pool.nodes
        for slot, runs in story.pool.orders(node).seats.items()
    }


def targets(outcome_records: tuple[r.Record, ...]) -> dict[int, r.Target]:
    """Give the targets that were decided."""
    found = [each for each in outcome_records if isinstance(each, r.Decided)]
    return {job: target for decided in found for job, target in decided.targets.items()}


def wake(story: Story, after_s: float = 0.0) -> dict[int, r.Target]:
    """Let everything be decided anew, and give what that changes."""
    story.now_s += after_s
    story.control.reconsider("a test")
    return targets(story.happen(r.Woke()).records)
