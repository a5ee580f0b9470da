"""How a new lead finds the workers that an earlier one has left. Pure."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from coddl.runtime.supervisor.generations import SurvivorsFound
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message


@dataclass(slots=True)
class Adoption:
    """Asks every worker host; done when each has answered or can't be reached."""

    asked: set[str]
    generation: int = 0
    newest_worker: int = -1
    has_finished: bool = False  # a worker ran the script to its end while there was no lead
    records: list[WorkerRecord] = field(default_factory=list)  # of all living workers

    @classmethod
    def of(cls, nodes: Iterable[str]) -> "Adoption":
        """Begin to ask the worker hosts of these nodes."""
        return cls(set(nodes))

    def living(self, node: str, word: Message, now_s: float) -> None:
        """Note which workers run at a host, and which have exited there without a lead."""
        self.asked.discard(node)
        self.generation = max(self.generation, word["generation"])
        self.newest_worker = max(self.newest_worker, word["newest"])
        self.has_finished |= any(map(_has_finished, word["gone"]))
        for each in word["workers"]:
            record = WorkerRecord(WorkerHistory.from_data(each), node, now_s, now_s)
            record.has_stepped = record.history.step > 0
            self.records.append(record)

    def unpark(self, wanted: Container[int]) -> list[int]:
        """Name the parked workers on wanted slots; the others will not be needed."""
        for record in self.records:
            record.is_unwanted |= record.history.is_parked and record.history.slot not in wanted
        return [record.number for record in self._survivors() if record.history.is_parked]

    def skip(self, node: str) -> None:
        """Note that a worker host can't be reached."""
        self.asked.discard(node)

    def gone(self, node: str, exited: Message) -> None:
        """Take in that a worker has exited while others had not answered yet."""
        self.has_finished |= _has_finished(exited)
        gone = (node, exited["worker"])
        self.records = [each for each in self.records if (each.node, each.number) != gone]

    def lose(self, node: str) -> None:
        """Note that a worker host is lost: it must be asked again, even if it has answered."""
        self.asked.add(node)
        self.records = [record for record in self.records if record.node != node]

    @property
    def is_done(self) -> bool:
        return not self.asked

    @property
    def about(self) -> Message | None:
        """Give what one of those with the state said of the script."""
        said = (record.history.arrived for record in self._survivors())
        return next((each for each in said if each is not None), None)

    def found(self) -> SurvivorsFound:
        """Give what the coordinator must know: workers with the state, and the numbers in use."""
        about = self.about or {}
        survivors = tuple(each.survivor for each in self._survivors())
        sizes = (about.get("parts"), about.get("workers_max"))
        return SurvivorsFound(survivors, self.generation, self.newest_worker, *sizes)

    def useless(self) -> list[int]:
        """Name the workers that live but never got the state, and do not leave by themselves."""
        kept = {record.number for record in self._survivors()}
        rest = [each for each in self.records if each.number not in kept]
        return [each.number for each in rest if not each.history.has_left]

    def _survivors(self) -> list[WorkerRecord]:
        """Give the workers that have the state or may have it, the oldest first."""
        maybe = [each for each in self.records if each.history.may_have_state]
        maybe = [each for each in maybe if not (each.history.has_left or each.is_unwanted)]
        return sorted(maybe, key=lambda record: record.number)


def _has_finished(exited: Message) -> bool:
    return bool(exited.get("has_ended")) and not exited["code"]
