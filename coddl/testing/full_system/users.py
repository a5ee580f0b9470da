"""Users: they submit jobs until they are answered, and meddle with them."""

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final

from coddl.core.errors import UserError
from coddl.core.pool import records as r
from coddl.core.pool.state import Pool
from coddl.server.errors import JournalFull
from coddl.server.loop import IdempotentRequest
from coddl.server.server import Server
from coddl.testing.full_system.machines import ServerMachine, SimulatedWorld
from coddl.testing.full_system.plan import PlannedJob, UserAct

AGAIN_S: Final = 1.0  # before a request that was not answered is repeated
PATIENCE_S: Final = 4.0  # that an answer may take
BY: Final = "ada"


class Users:
    """All users of the pool."""

    def __init__(self, world: SimulatedWorld, server: ServerMachine) -> None:
        self._world, self._machine = world, server
        self._numbers: dict[int, int] = {}  # of accepted jobs, by their number in the plan
        self._settled: set[int] = set()  # accepted or refused, by number in the plan
        self._chance = world.chance("users")

    @property
    def has_asked_all(self) -> bool:
        """Tell whether all jobs have been accepted or refused."""
        return len(self._settled) == len(self._world.plan.jobs)

    def begin(self) -> None:
        """Have users do what the plan says."""
        time = self._world.time
        for job in self._world.plan.jobs:
            time.call_at(job.at_s, self._submit, job)
        for act in self._world.plan.acts:
            time.call_at(act.at_s, self._act, act)

    def free_all(self) -> None:
        """Resume all jobs and nodes, so that nothing but the pool keeps jobs from ending."""
        pool = self._world.invariants.pool
        for node in pool.nodes.values():
            if node.is_drained:
                self._ask((r.NodeUndrained(node.name, BY),))
        for job in pool.live_jobs():
            if job.suspended and not job.cancelled:
                self._ask((r.JobResumed(job.id, BY),))

    def _submit(self, job: PlannedJob) -> None:
        """Submit a job; again, with the same key, until there is an answer."""
        number, accepted = job.number, list[int]()
        if number in self._settled:
            return

        def events(pool: Pool) -> tuple[r.Event, ...]:
            accepted.append(pool.next_job)
            spec = replace(job.spec, uid=f"uid-{number}")
            return (r.JobSubmitted(pool.next_job, spec),)

        def take(answer: str | UserError) -> None:
            if isinstance(answer, str) and number not in self._settled:
                self._settled.add(number)
                self._numbers[number] = int(answer)
                self._world.invariants.answered(job.spec.name, int(answer))
            elif isinstance(answer, UserError) and not isinstance(answer, JournalFull):
                self._world.story.tell(f"{job.spec.name} was refused: {answer.because}")
                self._settled.add(number)

        once = IdempotentRequest(f"key-{number}", job.spec.name, lambda: f"{accepted[-1]}")
        self._request(lambda server: server.ask(events, once, submits=True), take)
        self._world.time.call_later(
            PATIENCE_S if self._machine.is_up else AGAIN_S, self._submit, job
        )

    def _act(self, act: UserAct) -> None:
        """Do something else, once."""
        if (event := self._event_of(act)) is not None:
            self._ask((event,))

    def _ask(self, events: tuple[r.Event, ...]) -> None:
        def take(answer: str | UserError) -> None:
            if isinstance(answer, UserError):
                self._world.story.tell(f"{events[0]} was refused: {answer.because}")

        self._request(lambda server: server.ask(lambda _pool: events), take)

    def _request(
        self,
        ask: Callable[[Server], Coroutine[Any, Any, str]],
        take: Callable[[str | UserError], None],
    ) -> None:
        """Ask the server, if it is there; its answer may never come."""
        server, process = self._machine.server, self._machine.process
        if server is None or process is None:
            return

        async def answer() -> None:
            try:
                found: str | UserError = await ask(server)
            except UserError as error:
                found = error
            self._world.time.call_later(self._chance.uniform(0.001, 0.02), take, found)

        process.spawn(answer())

    def _event_of(self, act: UserAct) -> r.Event | None:
        if act.kind == "drain":
            return r.NodeDrained(act.node, BY)
        if act.kind == "undrain":
            return r.NodeUndrained(act.node, BY)
        if act.kind == "policy":
            return r.PolicyChosen(act.policy, BY, act.placement)
        if (job := self._numbers.get(act.job)) is None:
            return None
        match act.kind:
            case "cancel":
                return r.JobCancelled(job, BY)
            case "suspend":
                return r.JobSuspended(job, BY)
            case "resume":
                return r.JobResumed(job, BY)
            case "resize":
                return r.JobBounded(job, act.least, act.most, BY)
            case "prioritise":
                return r.JobPrioritised(job, act.priority, BY)
