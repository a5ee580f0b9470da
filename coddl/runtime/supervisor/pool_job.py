"""A job of a pool, led by an agent: its slots, workers found there, and when it retires."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from coddl.runtime.supervisor import generations as group
from coddl.runtime.supervisor.adoption import Adoption
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.job_status import RETIRED, SUPERSEDED
from coddl.runtime.supervisor.lead_parts import LeadParts
from coddl.runtime.supervisor.remote_worker_host import RemoteWorkerHost
from coddl.runtime.supervisor.slots import HostAddress, Slot
from coddl.runtime.supervisor.workers import Workers
from coddl.runtime.wire import Message

if TYPE_CHECKING:
    from coddl.runtime.supervisor.supervisor import Supervisor

SLOTS_AGAIN_S: Final = 60.0  # after a slot was given up


class PoolJob:
    """Does what the agent asks; with `adopt`, first finds workers that an earlier lead has left."""

    def __init__(
        self, supervisor: "Supervisor", parts: LeadParts, job: Job, node: str, *, adopt: bool
    ) -> None:
        assert job.id, "a job of a pool has an id"
        self.node = node
        self._supervisor = supervisor
        self._loop = parts.loop
        self._dial = parts.dial
        self._job = job
        self._adopts = adopt
        self._adoption: Adoption | None = None  # while it lasts
        self._slots: Sequence[Slot] | None = None  # None: not assigned yet
        self._addresses: Mapping[str, HostAddress] = {}

    def host_of(self, node: str, on_word: Callable[[Message], None]) -> RemoteWorkerHost:
        """Give the worker host of a node; it connects when it is first asked for something."""
        adopt = self._adoption is not None and node in self._adoption.asked
        hello = {"job": self._job.id, "attempt": self._job.attempt, "adopt": adopt}
        return RemoteWorkerHost(self._loop, self._dial, self._addresses[node], hello, on_word)

    # What the agent asks for.

    def assign(self, slots: Sequence[Slot], addresses: Mapping[str, HostAddress]) -> None:
        """Have the job run on these slots, after the search for its workers."""
        job_status, workers = self._supervisor.job_status, self._supervisor.workers
        if job_status.is_over or (job_status.is_retiring and not self._call_back(slots)):
            return
        wanted = {self.node, *(slot.node for slot in slots)}
        assert slots, "a job without slots is retired"
        assert wanted <= addresses.keys(), f"no address of {wanted - addresses.keys()}"
        before, self._addresses = self._addresses, {**self._addresses, **addresses}
        is_first, self._slots = self._slots is None, tuple(slots)
        for node in [
            node for node, address in addresses.items() if before.get(node, address) != address
        ]:
            workers.forget_worker_host(node, f"the agent of node {node} was restarted")
        if is_first:
            self._begin(workers, wanted)
        if self._adoption is None:
            self._supervisor.set_target(slots)

    def _call_back(self, slots: Sequence[Slot]) -> bool:
        """Have a job go on that has parked and is still being saved; False: it is too late."""
        numbers = {slot.number for slot in slots}
        is_parked = self._supervisor.job_status.is_parked
        return is_parked and self._supervisor.suspension.call_back(numbers)

    def lose(self, nodes: Sequence[str]) -> None:
        """Count workers on nodes as gone, though their worker hosts have not said so."""
        for node in nodes:
            self._supervisor.workers.forget_worker_host(
                node, f"the lease of node {node} has expired"
            )

    def assign_later(self) -> None:
        """Retry slots that were given up: their node may not have known of the job yet."""
        self._loop.alarm("slots", self._loop.now_s() + SLOTS_AGAIN_S, self._assign_again)

    def _assign_again(self) -> None:
        job_status = self._supervisor.job_status
        if self._slots and not (job_status.is_over or job_status.is_retiring):
            self._supervisor.set_target(self._slots)

    def retire(self, *, park: bool = False) -> None:
        """Make the state durable and have all workers leave; before there is any, simply stop.

        `park`: workers give up their GPUs and stay, for the next lead.
        """
        job_status = self._supervisor.job_status
        job_status.is_retiring, job_status.parks = True, park
        if job_status.is_over or self._adoption is not None:
            return  # it ends by itself; or the workers that are found are told afterwards
        if job_status.coordinator.members and job_status.coordinator.step and not job_status.rigid:
            self._supervisor.set_target(())
        else:
            self._supervisor.stop(RETIRED)

    def _begin(self, workers: Workers, nodes: set[str]) -> None:
        if self._adopts:
            self._adoption = Adoption.of(nodes)
            for node in nodes:
                workers.worker_host(node).open()
        workers.open()

    # What worker hosts say.

    def on_living(self, node: str, word: Message) -> None:
        """Take in which workers run at a host.

        A worker that is found later was given up before, or is another attempt's: it is killed.
        """
        if self._adoption is not None and node in self._adoption.asked:
            self._adoption.living(node, word, self._loop.now_s())
            self._end_adoption()
            return
        known = {(record.node, record.number) for record in self._supervisor.workers.records}
        for each in word["workers"]:
            if (node, each["worker"]) not in known:
                kill = {"do": "kill", "worker": each["worker"], "signal": 9}
                self._supervisor.workers.worker_host(node).do(kill)

    def on_unreachable(self, node: str) -> None:
        """Take in that a worker host can't be reached."""
        if self._adoption is not None:
            self._adoption.skip(node)
            self._end_adoption()

    def on_lost(self, node: str) -> None:
        """Ask a worker host again that hung up: workers found there may be gone, or not."""
        if self._adoption is not None:
            self._adoption.lose(node)
            self._supervisor.workers.worker_host(node).open()

    def on_unknown_gone(self, node: str, word: Message) -> None:
        """Take in that a worker which is not ours yet, or not any more, has exited."""
        if self._adoption is not None:
            self._adoption.gone(node, word)

    def on_superseded(self) -> None:
        """Leave everything as it is: a newer attempt has it."""
        self._supervisor.workers.abandon()
        self._supervisor.job_status.exit_code = SUPERSEDED

    def _end_adoption(self) -> None:
        """Once all have answered, go on with the workers found, then toward the target."""
        adoption, job_status = self._adoption, self._supervisor.job_status
        if adoption is None or not adoption.is_done or job_status.stopping is not None:
            return
        self._adoption = None
        slots = () if job_status.is_retiring else self._slots or ()
        parked = adoption.unpark({slot.number for slot in slots})
        self._take_over(adoption, parked)
        if job_status.is_retiring:
            self.retire()
        elif job_status.stopping is None:
            assert self._slots is not None
            self._supervisor.set_target(self._slots)

    def _take_over(self, adoption: Adoption, parked: Sequence[int]) -> None:
        """Adopt the workers of an earlier lead, and have those go on that wait."""
        supervisor, workers = self._supervisor, self._supervisor.workers
        for record in adoption.records:
            workers.adopt(record)
            supervisor.retries.stepped(record.history.step)
        for number in adoption.useless():
            workers.stop(number)
        supervisor.job_status.has_finished = adoption.has_finished
        if adoption.has_finished and not adoption.records:
            supervisor.stop(0)
            return
        if adoption.about is not None:
            supervisor.tell_about(adoption.about)
        for number in parked:
            workers.unpark(number)
        for record in adoption.records:
            if record.history.awaits_turn:
                workers.begin_turn(record.number)
        supervisor.job_status.has_slept = bool(parked)
        supervisor.feed(adoption.found())
        for record in adoption.records:
            if record.history.has_ended:
                supervisor.feed(group.LoopEnded(record.number))
