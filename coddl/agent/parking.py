"""The jobs whose workers wait on this node without their GPUs. Pure.

    told to park ──► leaving ──► ended: its state is durable ──► known to the server
                                 │                                │ not in the orders any more
                                 └── memory runs short ───────────┴──► its workers end

A parked job is a copy in memory of what is on disk: ending its workers costs time, never a step.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal


@dataclass(slots=True)
class _ParkedJob:
    state: Literal["leaving", "ended", "known"] = "leaving"
    bytes_: int = 0  # of host memory


class ParkingLot:
    """Who is parked, the oldest first, within a budget of host memory."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
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
        over_bytes = self.bytes_ - self.budget_bytes
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
