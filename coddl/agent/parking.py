"""The jobs whose workers wait on this node without their GPUs.

    told to park ──► leaving ──► ended: its state is durable ──► known to the server
                                 │                                │ not in the orders any more
                                 └── memory runs short ───────────┴──► its workers end

A parked job is a copy in memory of what is on disk: ending its workers costs time, never a step.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import structlog

from coddl.agent.slot_table import AgentBridge, WorkerHosts
from coddl.core.pool.records import RunEnded
from coddl.runtime.supervisor.slots import Parked, SlotProcess

log = structlog.get_logger()


@dataclass(slots=True)
class _ParkedJob:
    state: Literal["leaving", "ended", "known"] = "leaving"
    bytes_: int = 0  # of host memory


class ParkingLot:
    """Who is parked, the oldest first, within a budget of host memory. Pure."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._reserved_bytes = 0  # of the budget, for others
        self._jobs: dict[int, _ParkedJob] = {}

    @property
    def jobs(self) -> list[int]:
        """The jobs whose parked workers may stay, and those that are about to park."""
        return list(self._jobs)

    @property
    def bytes_(self) -> int:
        """How much host memory is used."""
        return sum(job.bytes_ for job in self._jobs.values())

    @property
    def oldest(self) -> int | None:
        """The job that has been parked for longest."""
        return next((job for job, each in self._jobs.items() if each.state != "leaving"), None)

    def expect(self, job: int) -> None:
        """Take note that a job was told to park."""
        self._jobs[job] = _ParkedJob()

    def add(self, job: int, bytes_: int) -> list[int]:
        """Take note that a job is parked; name those that have to go for it, the oldest first.

        One that is larger than the budget has to go itself.
        """
        self._jobs.pop(job, None)
        self._jobs[job] = _ParkedJob("ended", bytes_)
        return self._cut()

    def reserve(self, bytes_: int) -> list[int]:
        """Take note of what others use of the budget; name those that have to go for it."""
        self._reserved_bytes = bytes_
        return self._cut()

    def _cut(self) -> list[int]:
        """Forget and name the jobs that have to go, the oldest first."""
        over_bytes = self.bytes_ + self._reserved_bytes - self.budget_bytes
        gone: list[int] = []
        for each, parked in self._jobs.items():
            if over_bytes > 0 and parked.state != "leaving":
                gone.append(each)
                over_bytes -= parked.bytes_
        for each in gone:
            del self._jobs[each]
        return gone

    def note_known(self, job: int) -> None:
        """Take note that the server knows of it: from now on its orders tell."""
        if job in self._jobs and self._jobs[job].state == "ended":
            self._jobs[job].state = "known"

    def unwanted(self, wanted: Collection[int]) -> list[int]:
        """Name the jobs that the server has nothing to say of any more, and forget them."""
        gone = [j for j, each in self._jobs.items() if each.state == "known" and j not in wanted]
        for job in gone:
            del self._jobs[job]
        return gone

    def remove(self, job: int) -> bool:
        """Forget a job; tell whether it was parked."""
        return self._jobs.pop(job, None) is not None

    def lose(self, alive: Collection[int]) -> list[int]:
        """Forget and name the jobs none of whose parked workers is alive."""
        gone = [j for j, each in self._jobs.items() if each.state != "leaving" and j not in alive]
        for job in gone:
            del self._jobs[job]
        return gone


class ParkedJobs:
    """Has parked workers stay, or ends them, as the lot says."""

    def __init__(self, lot: ParkingLot, bridge: AgentBridge, job_hosts: WorkerHosts) -> None:
        self._lot = lot
        self._bridge = bridge
        self._job_hosts = job_hosts
        self._found: Parked = {}  # who waits here, by job

    @property
    def jobs(self) -> list[int]:
        """The jobs that are parked here, or are about to be."""
        return self._lot.jobs

    @property
    def present(self) -> frozenset[int]:
        """The jobs whose parked workers are alive, and may stay."""
        return frozenset({int(job) for job in self._found} & set(self._lot.jobs))

    @property
    def processes(self) -> list[SlotProcess]:
        return [process for processes in self._found.values() for process in processes]

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes if process.pid is not None]

    def expect(self, job: int) -> bool:
        """Have a job park; False: there is no memory for that."""
        if not self._lot.budget_bytes:
            return False
        self._lot.expect(job)
        self._allow()
        return True

    def park(self, ended: RunEnded) -> None:
        """Keep the workers of a run that has ended, if it has left some; others may have to go."""
        if ended.parked:
            for job in self._lot.add(ended.job, ended.parked_bytes):
                self._end(job, "host memory ran short")
        else:
            self._lot.remove(ended.job)
        self._allow()

    def reserve(self, bytes_: int) -> None:
        """Leave memory to jobs that wait for their turn; some of those parked may have to go."""
        for job in self._lot.reserve(bytes_):
            self._end(job, "jobs that take turns need the host memory")

    def take(self, job: int) -> bool:
        """Have a new run of a job take its parked workers up; tell whether there are any."""
        return self._lot.remove(job)

    def keep(self, wanted: Collection[int]) -> None:
        """End what the server has nothing to say of any more."""
        for job in self._lot.unwanted(wanted):
            self._end(job, "the server no longer keeps it parked here")

    def note(self, found: Parked) -> None:
        """Hear which workers wait here."""
        self._found = found
        for job in self._lot.lose({int(job) for job in found}):
            self._end(job, "its parked workers have ended")

    def note_known(self, job: int) -> None:
        """Hear that the server knows of a job's end."""
        self._lot.note_known(job)

    def end_oldest(self) -> bool:
        """End the job that has waited longest; tell whether there was one."""
        if (job := self._lot.oldest) is None:
            return False
        self._end(job, "host memory ran short")
        return True

    def end_all(self, because: str) -> None:
        for job in self._lot.jobs:
            self._end(job, because)

    def _end(self, job: int, because: str) -> None:
        self._lot.remove(job)
        log.info("parked_job_ended", job=job, because=because)
        self._job_hosts.kill(str(job))
        self._allow()

    def _allow(self) -> None:
        self._bridge.parked = frozenset(map(str, self._lot.jobs))
        self._job_hosts.look_again()
