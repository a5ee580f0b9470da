"""A pool whose agents do at once what they are told, for stories told event by event."""

from collections.abc import Mapping
from dataclasses import replace

from coddl.core.pool import records as r
from coddl.core.pool.control import ControlOutput, ControlPlane
from coddl.core.pool.job import JobState
from coddl.core.pool.spec import JobSpec, Launch, Tier
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from coddl.core.speed.inspection import LinkClass, LinkSpeed


class Story:
    """A pool whose agents do at once what they are told, as far as a test lets them."""

    def __init__(
        self,
        *devices: int,
        stability: Stability | None = None,
        registry: Registry = BUILT_IN,
        parking_bytes: int = 0,
        links: Mapping[LinkClass, LinkSpeed] | None = None,
    ) -> None:
        self.now_s, self.parking_bytes, self.links = 0.0, parking_bytes, links or {}
        calm = stability or Stability(cool_down_s=0.0, reserve_s=0.0)
        self.control = ControlPlane(Pool(), calm, registry=registry)
        self.journal: list[tuple[int, float, r.Record]] = []
        for number, count in enumerate(devices):
            self.join("abc"[number], count)

    @property
    def pool(self) -> Pool:
        return self.control.pool

    def job(self, number: int) -> JobState:
        return self.pool.jobs[number]

    def happen(self, event: r.Event | r.RunFact | r.RunProgressed) -> ControlOutput:
        """Let something happen; what runs tell is told by their lead."""
        self.now_s += 1.0
        if isinstance(event, r.RunFact | r.RunProgressed):
            event = self.told(event)
        outcome = self.control.handle(event, self.now_s)
        for record in outcome.records:
            self.journal.append((len(self.journal), self.now_s, record))
        return outcome

    def told(self, fact: r.RunFact | r.RunProgressed) -> r.RunReported:
        """Give a fact as the word of the run's lead."""
        lead = self.pool.nodes[self.job(fact.job).led_by or ""]
        return r.RunReported(lead.name, lead.boot, fact)

    def join(self, node: str, devices: int, boot: str = "1", folder: str = "") -> ControlOutput:
        kinds = tuple(r.Device(i, "cpu") for i in range(devices))
        joined = r.NodeJoined(node, boot, "host", kinds, folder=folder)
        return self.happen(replace(joined, parking_bytes=self.parking_bytes, links=self.links))

    def submit(
        self,
        least: int = 1,
        most: int = 4,
        tier: Tier = "elastic",
        priority: int = 0,
        **launch: object,
    ) -> int:
        spec = JobSpec(
            name=f"job-{self.pool.next_job}",
            launch=Launch(argv=("train.py",), **launch),  # type: ignore[arg-type] # a test's own
            tier=tier,
            gpus_min=least,
            gpus_max=most if tier == "elastic" else least,
            priority=priority,
        )
        return self.hand_in(spec)

    def hand_in(self, spec: JobSpec) -> int:
        number = self.pool.next_job
        self.happen(r.JobSubmitted(number, spec))
        return number

    def prepare(
        self,
        number: int,
        *,
        virtual_nodes: int | None = None,
        workers_max: int = 8,
        model: int | None = None,
    ) -> int:
        """Let a job's script tell how its batch of 64 samples can be shared."""
        most = virtual_nodes or workers_max
        told = (number, self.job(number).attempt, virtual_nodes, 100, 64, 0, 0, most, model)
        self.happen(r.RunPrepared(*told))
        return number

    def train(self, *numbers: int, gradients: tuple[int, int] = (0, 0)) -> None:
        """Let jobs come to their first step, and to the size they shall have.

        `gradients` are the bytes of all of them, and of the largest.
        """
        for number in numbers:
            job = self.job(number)
            if job.spec.is_elastic:
                self.happen(r.RunPrepared(number, job.attempt, None, 100, 64, *gradients, 8))
            self.happen(r.RunStepped(number, job.attempt, 1))
            gpus = len(job.granted)
            self.happen(r.RunProgressed(number, job.attempt, 4, gpus, 1.0 / gpus, 3))
        self.catch_up()

    def catch_up(self) -> None:
        """Let every agent do all it was told."""
        for _ in range(5):
            for job in list(self.pool.live_jobs()):
                if job.stop:
                    outcome: r.Outcome = "cancelled" if job.stop == "cancel" else "retired"
                    self.happen(r.RunEnded(job.id, job.attempt, outcome, job.step))
                elif job.granted and job.phase == "resizing":
                    change = (job.id, job.attempt, job.change + 1, "resized", 1, job.granted)
                    self.happen(r.RunChanged(*change, 5, 0.1, 0.2))  # type: ignore[arg-type]
            self.report()

    def report(self) -> None:
        """Let every node say that it holds just what it may."""
        for node in list(self.pool.nodes.values()):
            if node.is_up and not node.is_silent:
                seats = self.holding(node.name)
                slots = [self.pool.slots[slot] for slot in node.slots]
                others = {each.device.index: each.others for each in slots if each.others}
                self.happen(
                    r.NodeReported(node.name, node.boot, node.version, seats, others=others)
                )

    def holding(self, node: str) -> dict[int, r.RunId]:
        """Name the runs that are at work on a node's slots when it does what it was told."""
        return {slot: runs[0] for slot, runs in self.pool.orders(node).seats.items()}

    def shares(self) -> dict[int, int]:
        return {job.id: len(job.granted) for job in self.pool.live_jobs()}
