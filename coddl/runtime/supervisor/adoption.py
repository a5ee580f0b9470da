"""How a new lead finds the workers that an earlier one has left. Pure."""

from collections.abc import Container, Iterable
from dataclasses import dataclass, field

from coddl.runtime.supervisor.generations import Survivor, SurvivorsFound
from coddl.runtime.supervisor.slots import Slot
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
    about: Message | None = None  # what one of them said of the script
    _maybe: dict[int, Survivor] = field(default_factory=dict)

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
            slot = Slot(each["slot"], node, each["gpu"])
            record = WorkerRecord(each["worker"], slot, started_s=now_s, heard_s=now_s)
            record.pid, record.step = each["pid"], each["step"]
            record.has_prepared, record.has_arrived = each["has_prepared"], bool(each["arrived"])
            record.has_left, record.has_ended = each["has_left"], each["has_ended"]
            record.is_parked, record.awaits_turn = each["is_parked"], each["awaits_turn"]
            record.image = each["image"]
            self.records.append(record)
            if each["may_have_state"] and not each["has_left"]:
                self.about = self.about or each["arrived"]
                self._maybe[record.number] = Survivor(
                    record.number, record.slot.number, record.step, each["has_state"]
                )

    def unpark(self, wanted: Container[int]) -> list[int]:
        """Name the parked workers on wanted slots; the others will not be needed."""
        parked = [record for record in self.records if record.is_parked]
        for record in parked:
            if record.slot.number not in wanted:
                self._maybe.pop(record.number, None)
        self.about = self.about if self._maybe else None
        return [record.number for record in parked if record.number in self._maybe]

    def skip(self, node: str) -> None:
        """Note that a worker host can't be reached."""
        self.asked.discard(node)

    def gone(self, node: str, exited: Message) -> None:
        """Take in that a worker has exited while others had not answered yet."""
        self.has_finished |= _has_finished(exited)
        self._drop([n for n in self.records if (n.slot.node, n.number) == (node, exited["worker"])])

    def lose(self, node: str) -> None:
        """Note that a worker host is lost: it must be asked again, even if it has answered."""
        self.asked.add(node)
        self._drop([n for n in self.records if n.slot.node == node])

    def _drop(self, dead: list[WorkerRecord]) -> None:
        for record in dead:
            self.records.remove(record)
            self._maybe.pop(record.number, None)
        self.about = self.about if self._maybe else None

    @property
    def is_done(self) -> bool:
        return not self.asked

    def found(self) -> SurvivorsFound:
        """Give what the coordinator must know: workers with the state, and the numbers in use."""
        parts = self.about["parts"] if self.about else None
        workers_max = self.about["workers_max"] if self.about else None
        survivors = tuple(self._maybe[number] for number in sorted(self._maybe))
        return SurvivorsFound(survivors, self.generation, self.newest_worker, parts, workers_max)

    def useless(self) -> list[int]:
        """Name the workers that live but never got the state, and do not leave by themselves."""
        return [n.number for n in self.records if n.number not in self._maybe and not n.has_left]


def _has_finished(exited: Message) -> bool:
    return bool(exited.get("has_ended")) and not exited["code"]
