"""What identifies a run: the key that tables, reports and files group results by."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class RunKey:
    """What one run of a trace differs from another in."""

    policy: str  # as the user named it
    gpus: int
    placement: str = ""  # as the user named it; empty: none, or the policy's own
    cluster: str = ""  # as the user described it; empty: nodes do not matter
    queue: str | None = None  # None: all queues share the GPUs
    load: float = 1.0
    seed: int = 0

    @property
    def scheduler(self) -> str:
        """Policy and placement, which a comparison is about."""
        return f"{self.policy} + {self.placement}" if self.placement else self.policy

    @property
    def setting(self) -> "RunKey":
        """What two runs must have in common for their schedulers to be compared."""
        return replace(self, policy="", placement="", seed=0)

    @property
    def any_seed(self) -> "RunKey":
        """What the runs of all seeds have in common."""
        return replace(self, seed=0)

    @property
    def columns(self) -> dict[str, object]:
        """The columns that identify a run in tables and files, in their order."""
        return {
            "policy": self.policy,
            "placement": self.placement,
            "vc": self.queue,
            "cluster": self.cluster,
            "gpus": self.gpus,
            "load": self.load,
            "seed": self.seed,
        }
