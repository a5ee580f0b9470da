"""A decision that is to be made, apart from the pool that it is for."""

from dataclasses import dataclass, replace
from typing import Self

from coddl.core.cluster import Cluster
from coddl.core.pool.failed_decision import FailedDecision, decide_or_hold
from coddl.core.pool.records import Decided
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability

Decision = Decided | FailedDecision


@dataclass(frozen=True, slots=True)
class PendingDecision:
    """A decision that is to be made, and all that it depends on.

    It may be made in another thread while jobs are submitted to the pool. A submit adds a job and
    changes none, so the decision is the one that would have been made before it.
    """

    pool: Pool
    stability: Stability
    why: str
    now_s: float
    site: Cluster | None = None
    registry: Registry = BUILT_IN

    def without_later_jobs(self) -> Self:
        """Return the same decision, on the jobs that there are now."""
        pool = self.pool
        return replace(self, pool=replace(pool, jobs=dict(pool.jobs), active=dict(pool.active)))

    def decide(self) -> Decision:
        """Make the decision. Changes nothing."""
        rules = (self.stability, self.why, self.now_s, self.site)
        return decide_or_hold(self.pool, *rules, registry=self.registry)
