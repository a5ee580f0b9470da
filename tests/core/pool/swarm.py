"""A pool in virtual time, with agents that crash, fall silent and come back; one seed, one story.

The control plane is the real one. Agents are a model of what ours do: they obey their newest
orders, start nothing on a slot that is not theirs to use, and tell what they hold. Users cancel,
suspend, resize and drain as they like. Some commits fail: then nothing has happened, and the pool
is folded again. After every event the claims of the pool are checked against what is really alive.
"""

import random

import msgspec

from coddl.core.errors import UserError
from coddl.core.pool import records as r
from coddl.core.pool.control import ControlOutput, ControlPlane
from coddl.core.pool.orders import Orders
from coddl.core.pool.spec import JobSpec, Launch
from coddl.core.pool.state import Pool
from coddl.core.registry import BUILT_IN, Registry
from coddl.core.scheduler import Stability
from tests.core.pool.agents import Agent, Run, Said
from tests.core.pool.claims import check

TICK_S = 0.5
LEASE_S = 10.0
START_S = 60.0

# What the random user switches between: one of each family, as compiling them all takes minutes.
POLICIES = ("afs-p:tie=keep", "afs-l", "fifo", "srtf", "tiresias-l", "themis", "gandiva", "philly")
PLACEMENTS = ("", "consolidate", "gather", "spread", "tiresias", "philly")


class Swarm:
    """A whole pool, driven by one seed."""

    def __init__(
        self,
        seed: int,
        policy: str = "afs-p:tie=keep",
        *,
        users: bool = False,
        full: float = 0.0,
        crowded: bool = False,
        registry: Registry = BUILT_IN,
    ) -> None:
        """`users` interfere; a commit fails with a probability of `full`.

        `crowded`: nodes are small, most jobs want one device, and the policy is seldom changed.
        """
        self.registry = registry
        self.random = random.Random(seed)
        self.users, self.full, self.crowded = users, full, crowded
        self.length = 40.0  # device-ticks of work per job
        self.policy = policy
        self.now_s = 1000.0
        self.journal: list[tuple[float, r.Record]] = []
        self.stability = Stability(cool_down_s=self.random.choice([0.0, 3.0]), reserve_s=5.0)
        self.control = self.control_of(Pool(policy=policy))
        self.agents = {
            name: Agent(name, self.random.randint(1, 2 if crowded else 4))
            for name in "abc"[: self.random.randint(1, 3)]
        }
        for agent in self.agents.values():  # none, for two jobs whose gradients are known, for all
            agent.parking_bytes = self.random.choice([0, 10**10, 10**12, 10**12])
        self.done: dict[int, float] = {}  # work, by job
        self.inbox: dict[str, Orders] = {}
        self.again: list[Said] = []  # could not be written down yet
        self.owed = False  # conclusions were left to a later turn
        self.picture = b""  # of the pool after `pictured` records
        self.pictured = 0
        self.faults = True

    @property
    def pool(self) -> Pool:
        return self.control.pool

    # The server.

    def control_of(self, pool: Pool) -> ControlPlane:
        return ControlPlane(pool, self.stability, registry=self.registry)

    def happen(self, event: r.Event, by: str = "") -> None:
        """Let the control plane hear of something, and look whether all is well."""
        said = [*self.again, Said(by, event)]
        self.again = []
        for each in said:
            self.control.take(each.event, self.now_s)
        self.conclude(said)

    def wish(self, event: r.Event) -> bool:
        """Let a user ask for something; tell whether it may be."""
        try:
            self.control.take(event, self.now_s)
        except UserError:
            return False
        self.conclude([])
        return True

    def conclude(self, said: list[Said]) -> None:
        self.owed = self.faults and self.users and self.random.random() < 0.3
        outcome = self.control.note() if self.owed else self.concluded()
        if outcome.records and self.random.random() < self.full:
            self.undo(said)
            return
        self.journal += [(self.now_s, record) for record in outcome.records]
        if self.random.random() < 0.02:
            self.picture, self.pictured = msgspec.json.encode(self.pool), len(self.journal)
        for node in outcome.instruct:
            agent = self.agents[node]  # it is told nothing before its joining is written down
            if agent.is_connected and self.pool.nodes[node].boot == str(agent.boot):
                self.inbox[node] = self.pool.orders(node)
        check(self)

    def concluded(self) -> ControlOutput:
        """Draw conclusions."""
        return self.control.conclude(self.now_s)

    def undo(self, said: list[Said]) -> None:
        """Let it not have happened; what is said only once is kept for the next time."""
        awaited = self.control.awaited
        self.control = self.control_of(self.folded())
        if awaited:
            self.control.await_nodes(awaited)
        self.control.reconsider("journal reloaded")
        self.again, self.owed = said, True
        for agent in self.agents.values():
            if agent.name in self.pool.nodes and not agent.is_connected:
                boot = self.pool.nodes[agent.name].boot
                self.control.take(r.NodeSilent(agent.name, boot), self.now_s)

    def folded(self) -> Pool:
        """Give the pool as the journal has it, from a picture or from the start."""
        pool, start = Pool(policy=self.policy), 0
        if self.picture and self.random.random() < 0.7:
            pool, start = msgspec.json.decode(self.picture, type=Pool), self.pictured
            pool.forget_soft()
        for at_s, record in self.journal[start:]:
            pool.apply(record, at_s)
        pool.touched.clear()
        return pool

    def crash(self) -> None:
        """Kill the server and start it again: all it knows is its journal."""
        self.control = self.control_of(self.folded())
        self.control.await_nodes([n.name for n in self.pool.nodes.values() if n.is_up])
        self.inbox.clear()
        for said in reversed(self.again):  # was not acknowledged
            told = said.event
            if isinstance(told, r.RunReported) and told.boot == str(self.agents[said.by].boot):
                self.agents[said.by].reports.insert(0, told.fact)
        self.again = []
        for agent in self.agents.values():
            agent.is_connected = False
            agent.server_lease_end_s = self.now_s + LEASE_S

    def submit(self) -> None:
        least = self.random.choice([1, 1, 1, 2])
        tiers = ["elastic", "elastic", "elastic", "restartable", *["opaque"] * self.users]
        tier = self.random.choice(tiers)
        if self.crowded and self.random.random() < 0.8:
            least, tier = 1, "elastic"
        more = self.random.choice([0, 0, 0, 2]) if self.crowded else self.random.randint(0, 6)
        most = least + more if tier == "elastic" else least
        total = sum(len(n.slots) for n in self.pool.nodes.values() if n.is_up)
        widest = max((len(n.slots) for n in self.pool.nodes.values() if n.is_up), default=0)
        if least > (total if tier == "elastic" else widest):
            return
        job = self.pool.next_job
        spec = JobSpec(
            name=f"job-{job}",
            launch=Launch(argv=("train.py",), precheck=self.precheck(), start_within_s=START_S),
            tier=tier,  # type: ignore[arg-type] # one of them
            gpus_min=least,
            gpus_max=most,
            priority=self.random.choice([0, 0, 0, 1]),
        )
        if self.wish(r.JobSubmitted(job, spec)) and job in self.pool.jobs:
            self.done[job] = 0.0

    def precheck(self) -> tuple[str, ...]:
        return ("true",) if self.users and self.random.random() < 0.3 else ()

    def interfere(self) -> None:
        """Do what users do, now and then; what can't be is refused."""
        job = self.random.choice(list(self.pool.jobs) or [0])
        node = self.random.choice(list(self.pool.nodes) or [""])
        least = self.random.choice([1, 1, 2, 3])
        policies = tuple(self.registry.policies) or POLICIES
        wishes: list[r.Event] = [
            r.JobCancelled(job, "ada"),
            *[r.JobSuspended(job, "ada")] * 2,
            *[r.JobResumed(job, "ada")] * 3,
            r.JobBounded(job, least, least + self.random.randint(0, 6), "ada"),
            r.JobPrioritised(job, self.random.randint(0, 2), "ada"),
            r.NodeDrained(node, "ada", self.random.choice([None, 5.0, 40.0])),
            *[r.NodeUndrained(node, "ada")] * 2,
            r.NodeForgotten(node, "ada"),
            r.PolicyChosen(self.random.choice(policies), "ada", self.random.choice(PLACEMENTS)),
        ]
        wish = self.random.choice(wishes)
        is_rare = self.crowded and isinstance(wish, r.PolicyChosen | r.JobBounded)
        if not is_rare or self.random.random() < 0.2:
            self.wish(wish)

    def settle_down(self) -> None:
        """Let nothing go wrong any more, and nobody keep anything from running."""
        self.faults, self.full = False, 0.0
        for agent in self.agents.values():
            agent.is_cut_off = False
            if not agent.is_up:
                agent.boot, agent.is_up = agent.boot + 1, True
        for node in list(self.pool.nodes):
            self.wish(r.NodeUndrained(node, "ada"))
        for job in [each.id for each in self.pool.live_jobs()]:
            self.wish(r.JobResumed(job, "ada"))
            self.wish(r.JobBounded(job, 1, 2 if self.crowded else 8, "ada"))

    # Time.

    def tick(self) -> None:
        """Let half a second pass."""
        self.now_s += TICK_S
        if self.faults:
            self.go_wrong()
            if self.users and self.random.random() < 0.1:
                self.interfere()
        for agent in self.agents.values():
            self.connect(agent)
            self.keep_lease(agent)
            if agent.is_up:
                self.work(agent)
                self.talk(agent)
        wake_at_s = self.control.wake_at_s
        if self.owed or self.again or (wake_at_s is not None and self.now_s >= wake_at_s):
            self.happen(r.Woke())

    def go_wrong(self) -> None:
        dice = self.random.random()
        agent = self.random.choice(list(self.agents.values()))
        if dice < 0.02 and agent.is_up:
            agent.die()
            agent.is_up = False
            if agent.name in self.pool.nodes:
                self.happen(r.NodeSilent(agent.name, str(agent.boot)), agent.name)
        elif dice < 0.05 and not agent.is_up:
            agent.boot += 1
            agent.is_up = True
        elif dice < 0.07:
            agent.is_cut_off = not agent.is_cut_off
        elif dice < 0.08:
            self.crash()

    def connect(self, agent: Agent) -> None:
        reachable = agent.is_up and not agent.is_cut_off
        if agent.is_connected and not reachable:
            agent.is_connected = False
            self.happen(r.NodeSilent(agent.name, str(agent.boot)))
        elif reachable and not agent.is_connected:
            agent.is_connected = True
            self.inbox.pop(agent.name, None)  # was for an older line
            agent.lease_end_s = self.now_s + LEASE_S
            agent.server_lease_end_s = self.now_s + LEASE_S
            devices = tuple(r.Device(i, "cpu") for i in range(agent.devices))
            room = agent.parking_bytes
            joined = r.NodeJoined(agent.name, str(agent.boot), "host", devices, parking_bytes=room)
            self.happen(joined, agent.name)

    def keep_lease(self, agent: Agent) -> None:
        if agent.is_connected:
            agent.lease_end_s = self.now_s + LEASE_S
            agent.server_lease_end_s = self.now_s + LEASE_S
            return
        if agent.is_up and self.now_s >= agent.lease_end_s:
            agent.boot += bool(agent.orders)  # as good as another process: it knows nothing more
            agent.end_workers()
            agent.runs.clear()
            agent.orders = None  # nothing may start here before it is told anew
        node = self.pool.nodes.get(agent.name)
        if node is not None and node.is_up and self.now_s > agent.server_lease_end_s:
            agent.server_lease_end_s = float("inf")  # said once
            self.happen(r.NodeLost(node.name, node.boot, "its lease has run out"))

    # What an agent does.

    def talk(self, agent: Agent) -> None:
        """Take new orders; tell what is held and what has happened."""
        if not agent.is_connected:
            return
        if agent.name in self.inbox and self.random.random() < 0.7:
            agent.orders = self.inbox.pop(agent.name)
            self.obey(agent, agent.orders)
        while agent.reports and self.random.random() < 0.8:
            fact = agent.reports.pop(0)
            if self.loses(fact):
                continue
            report = r.RunReported(agent.name, str(agent.boot), fact)
            self.happen(report, agent.name)
            if self.random.random() < 0.1:
                self.happen(report, agent.name)  # a repeat
        self.gossip(agent)
        if agent.orders is not None:
            told = (agent.name, str(agent.boot), agent.orders.version, agent.holding())
            parked, node = frozenset(agent.parked), self.pool.nodes.get(agent.name)
            is_newest = node is not None and node.version == agent.orders.version
            turns = agent.told_turns()
            self.happen(r.NodeReported(*told, self.listed(agent), parked=parked, turns=turns))
            if is_newest and not self.again:
                assert self.pool.nodes[agent.name].parked.keys() <= parked, "it has told otherwise"

    def loses(self, fact: r.RunFact | r.RunProgressed) -> bool:
        """Let the word of a run's end get lost, now and then."""
        can_be = self.faults and isinstance(fact, r.RunEnded)
        return can_be and self.random.random() < 0.1

    def gossip(self, agent: Agent) -> None:
        """Tell wrong things about a run that another leads, or another attempt."""
        if not self.faults or self.random.random() > 0.05:
            return
        job = self.random.choice([*self.pool.jobs.values()] or [None])
        if job is None:
            return
        stale = job.led_by == agent.name
        attempt = job.attempt - 1 if stale else job.attempt
        fact = r.RunEnded(job.id, attempt, "failed")
        before = len(self.journal)
        self.happen(r.RunReported(agent.name, str(agent.boot), fact), agent.name)
        assert fact not in [record for _, record in self.journal[before:]]

    def listed(self, agent: Agent) -> frozenset[r.RunId]:
        """Name the runs that an agent has, or whose end it has yet to tell."""
        told = [*agent.reports, *(e.fact for e in self.unwritten if e.node == agent.name)]
        ended = [r.RunId(e.job, e.attempt) for e in told if isinstance(e, r.RunEnded)]
        led = [r.RunId(job, run.order.attempt) for job, run in agent.runs.items()]
        return frozenset([*led, *ended])

    @property
    def unwritten(self) -> list[r.RunReported]:
        """What agents have told of runs, and no commit has taken yet."""
        return [said.event for said in self.again if isinstance(said.event, r.RunReported)]

    def obey(self, agent: Agent, orders: Orders) -> None:
        wanted = {lead.job: lead for lead in orders.leads}
        for job in list(agent.runs):
            if job not in wanted or wanted[job].attempt != agent.runs[job].order.attempt:
                del agent.runs[job]  # its workers are left to the next lead
        for job, lead in wanted.items():
            if job in agent.runs:
                agent.runs[job].order = lead
            elif r.RunId(job, lead.attempt) not in agent.ended:
                hangs = self.faults and self.random.random() < 0.1
                agent.runs[job] = Run(lead, hangs=hangs)
        for job in agent.parked.keys() - {*orders.parked, *orders.jobs}:
            del agent.parked[job]  # nobody will resume it here
        for slot in {*agent.workers, *agent.resting}:
            for job in agent.jobs_on(slot) - {run.job for run in orders.seats.get(slot, ())}:
                if not any(job in each.runs for each in self.agents.values()):
                    agent.end_worker(slot, job)  # nobody will ever call it back

    def work(self, agent: Agent) -> None:
        if agent.parked and self.faults and self.random.random() < 0.02:
            del agent.parked[self.random.choice(list(agent.parked))]  # its memory was needed
        self.take_turns(agent)
        for job, run in list(agent.runs.items()):
            if self.random.random() < 0.6:
                self.lead(agent, job, run)

    def take_turns(self, agent: Agent) -> None:
        """Let another job have the turn, now and then, and at once where it may not be there."""
        for slot, runs in agent.orders.seats.items() if agent.orders is not None else ():
            jobs = [run.job for run in runs]
            is_over = agent.turn.get(slot) not in jobs or self.random.random() < 0.2
            at_work = agent.workers.get(slot)
            if is_over and (at_work is None or at_work in jobs):
                agent.switch_turn(slot, self.random.choice(jobs))

    def lead(self, agent: Agent, job: int, run: Run) -> None:
        """Bring a job's workers to where they shall be, and let them train."""
        order = run.order
        seats = {seat.slot: self.agents[seat.node] for seat in order.seats}
        mine = {slot: each for each in self.agents.values() for slot in each.has(job)}
        if (outcome := self.outcome(job, run)) is not None:
            for slot, each in mine.items():
                each.end_worker(slot, job)
            homes = run.waits or {slot: each.name for slot, each in mine.items()}
            parked = self.park(job, run, homes) if outcome == "retired" else ()
            ended = r.RunEnded(job, order.attempt, outcome, parked=parked, park_s=0.2)
            agent.reports.append(ended)
            agent.ended.add(r.RunId(job, order.attempt))
            del agent.runs[job]
            return
        if run.waits and order.stop:
            return
        if run.waits:  # called back
            run.waits, run.serves, run.is_warm = {}, (), True
        if order.stop == "park" and self.random.random() < 0.3:
            run.waits = {slot: each.name for slot, each in mine.items()}
            for slot, each in mine.items():
                each.end_worker(slot, job)
            return
        for slot, each in mine.items():
            if slot not in seats and self.random.random() < 0.5:
                each.end_worker(slot, job)
        for slot, each in seats.items():
            allowed = r.RunId(job, order.attempt) in each.runs_on(slot)
            is_empty = slot not in each.workers and job not in each.jobs_on(slot)
            if each.is_up and is_empty and allowed and each.turn.get(slot) == job:
                each.workers[slot] = job
                run.is_warm |= each.parked.pop(job, None) is not None
        serves = tuple(s for s, each in seats.items() if each.workers.get(s) == job)
        if serves:
            self.train(agent, job, run, serves)

    def park(self, job: int, run: Run, homes: dict[int, str]) -> tuple[int, ...]:
        """Keep a run's workers if it is told so, where they are; or do not, as an agent may."""
        nodes = set(homes.values())
        if run.order.stop != "park" or len(nodes) != 1 or self.random.random() < 0.2:
            return ()
        self.agents[nodes.pop()].parked[job] = tuple(homes)
        return tuple(homes)

    def outcome(self, job: int, run: Run) -> r.Outcome | None:
        """Tell how a run ends, if it ends now."""
        order = run.order
        if run.ran_out:
            return "requeue"
        if self.done[job] >= self.length:
            return "succeeded"
        if order.precheck and not run.hangs and self.random.random() < 0.3:
            return "prechecked"
        if order.stop and self.random.random() < 0.5:
            return "cancelled" if order.stop == "cancel" else "retired"
        if self.users and self.faults and self.random.random() < 0.005:
            return self.random.choice(["lost", "requeue"])
        return None

    def train(self, agent: Agent, job: int, run: Run, serves: tuple[int, ...]) -> None:
        attempt = run.order.attempt
        if run.order.precheck or run.order.stop or run.hangs:
            return
        self.done[job] += len(serves)
        step = int(self.done[job])
        if not run.told_prepared and self.random.random() < 0.7:
            run.told_prepared = True
            if self.pool.jobs[job].spec.is_elastic:
                sizes = (10**9, 10**8 * (job % 10))  # some models are skewed, some are not
                nodes = 8 if job % 2 else None  # some are strict
                steps = int(self.length) if job % 5 else None
                prepared = r.RunPrepared(job, attempt, nodes, steps, 64, *sizes, 8, job % 4)
                agent.reports.append(prepared)
        if run.told_prepared and len(serves) < 2 and (why := self.does_not_fit(job, run)):
            run.ran_out = True
            because = "a slice of 64 samples does not fit in memory"
            agent.reports.append(r.SliceDidNotFit(job, attempt, 2, because, why, 64))
            return
        if serves != run.serves:
            begins: r.ChangeKind = "resumed" if run.is_warm else "started"
            kind: r.ChangeKind = "resized" if run.serves else begins
            run.change += 1
            before, run.serves = len(run.serves), serves
            told = (job, attempt, run.change, kind, before, serves, step, 0.1, 0.5)
            agent.reports.append(r.RunChanged(*told))
        if not run.told_step:
            run.told_step = True
            agent.reports.append(r.RunStepped(job, attempt, step))
        agent.reports.append(r.RunProgressed(job, attempt, step, len(serves), 1 / len(serves), 5))

    def does_not_fit(self, job: int, run: Run) -> r.Evidence | None:
        """Say how a job on one device knows that it needs two, if it does."""
        if self.needs_two(job):
            return "tried"
        known = any(limit.model == job % 4 for limit in run.order.limits)
        return "remembered" if known and self.pool.jobs[job].spec.is_elastic else None

    def needs_two(self, job: int) -> bool:
        """Tell whether the memory of one device does not suffice for a job."""
        devices = sum(agent.devices for agent in self.agents.values())
        return self.users and devices > 1 and job % 3 == 0 and self.pool.jobs[job].spec.is_elastic
