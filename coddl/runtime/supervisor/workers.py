"""The workers of a job on all nodes: starts them, exchanges messages with them, ends them."""

import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from coddl.runtime.errors import TrainingError
from coddl.runtime.supervisor import job_errors
from coddl.runtime.supervisor.environment import (
    ON_ONE_GPU,
    RankTable,
    launcher_variables,
    nccl_variables,
    pool_variables,
)
from coddl.runtime.supervisor.generations import GroupPlan
from coddl.runtime.supervisor.job import Job
from coddl.runtime.supervisor.loop import SupervisorLoop
from coddl.runtime.supervisor.scripts import calls_prepare
from coddl.runtime.supervisor.slots import Slot
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_host import LOST, WorkerHost
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

LEAVER_WAIT_S: Final = 5.0  # after its swap a leaver has nothing to do but exit
STORES_MAX: Final = 5  # that may end in a row before they served


class WorkersListener(Protocol):
    """What the supervisor is told of its workers."""

    def tell(self, event: Message) -> None: ...
    def fail(self, error: TrainingError, code: int) -> None: ...
    def on_warm(self) -> None: ...
    def on_store(self) -> None: ...
    def on_store_lost(self) -> None: ...
    def on_word(self, record: WorkerRecord, message: Message) -> None: ...
    def on_gone(self, record: WorkerRecord, code: int, because: str | None) -> None: ...
    def on_saved(self, word: Message) -> None: ...


class HostsListener(Protocol):
    """What a pool job is told of worker hosts on other nodes."""

    def on_living(self, node: str, word: Message) -> None: ...
    def on_unreachable(self, node: str) -> None: ...
    def on_lost(self, node: str) -> None: ...
    def on_unknown_gone(self, node: str, word: Message) -> None: ...
    def on_superseded(self) -> None: ...


HostFactory = Callable[
    [str, Callable[[Message], None]], WorkerHost
]  # a node, and what gets its messages


class Workers:
    """The worker hosts of a job, its store and its workers; calls its listener from the loop.

    `host_of` gives the worker host of a node; the store is on `lead_node`. A `hosts_listener` hears
    of worker hosts on other nodes only.
    """

    def __init__(
        self,
        loop: SupervisorLoop,
        job: Job,
        listener: WorkersListener,
        *,
        lead_node: str,
        host_of: HostFactory,
        hosts_listener: HostsListener | None = None,
    ) -> None:
        self._loop = loop
        self._job = job
        self._is_plain = not calls_prepare(job.script)  # it finds its peers by itself
        self._lead_node = lead_node
        self._host_of = host_of
        self._listener = listener
        self._hosts_listener = hosts_listener
        self._worker_hosts: dict[str, WorkerHost] = {}
        self._workers: dict[int, WorkerRecord] = {}
        self._slots: Sequence[Slot] = ()  # of the target
        self._waiting: list[WorkerRecord] = []  # to be started once there is a store
        self._saves: Counter[str] = Counter()  # under way, by node
        self._stores_asked = 0
        self._stores_lost = 0  # in a row
        self._is_closing = False
        self.restarts = 0  # of all workers together
        self._epoch = 0  # that was heard of last
        self.gpus: int | None = None  # until torch is imported
        self.store: tuple[str, int] | None = None

    def open(self) -> None:
        """Have a store hosted."""
        self.store = None
        self._ask_store()

    def close(self) -> None:
        """End everything that runs; returns when it is gone, or no host answers."""
        self.dismiss()
        while not self.is_dismissed:
            self._loop.turn()

    def dismiss(self) -> None:
        """Have everything end that runs; again does no harm."""
        if not self._is_closing:
            self._is_closing = True
            for worker_host in self._worker_hosts.values():
                worker_host.close()

    @property
    def is_dismissed(self) -> bool:
        """Tell whether all of it is gone, or no host answers."""
        is_gone = all(worker_host.is_closed for worker_host in self._worker_hosts.values())
        return self._is_closing and is_gone

    def abandon(self) -> None:
        """Leave the workers to another lead."""
        self._is_closing = True
        for worker_host in self._worker_hosts.values():
            worker_host.leave()
        self._workers.clear()

    @property
    def records(self) -> list[WorkerRecord]:
        """The records of all workers, the oldest first."""
        return list(self._workers.values())

    def slot_numbers(self, numbers: Iterable[int]) -> list[int]:
        """Name the slots of workers, in their order; those that are gone have none."""
        return [self._workers[number].history.slot for number in numbers if number in self._workers]

    def set_slots(self, slots: Sequence[Slot]) -> None:
        """Set the slots of the job, for workers that are started from now on."""
        self._slots = slots

    @property
    def slots(self) -> Sequence[Slot]:
        """The slots of the job."""
        return self._slots

    def worker_host(self, node: str) -> WorkerHost:
        """Give the worker host of a node."""
        if node not in self._worker_hosts:
            self._worker_hosts[node] = self._host_of(node, lambda word: self._on_word(node, word))
        return self._worker_hosts[node]

    def forget_worker_host(self, node: str, because: str) -> None:
        """Hang up on a node; the next request goes to where it is reached then."""
        if (worker_host := self._worker_hosts.pop(node, None)) is not None:
            worker_host.leave()
            self._lose_node(node, because)

    def start(self, number: int, slot: Slot, *, joins: bool) -> None:
        """Start a worker on a slot; one that joins others while they train may take its time."""
        now_s = self._loop.now_s()
        history = WorkerHistory(number, slot.number, slot.gpu)
        record = WorkerRecord(history, slot.node, started_s=now_s, heard_s=now_s, joins=joins)
        record.is_first = not self._workers
        self._workers[number] = record
        if (self._job.id or self._is_plain) and self.store is None:
            self._waiting.append(record)  # it is told where to meet its peers when it starts
        else:
            self._start(record)

    def adopt(self, record: WorkerRecord) -> None:
        """Take over a worker that an earlier lead has started."""
        self._workers[record.number] = record

    def _start(self, record: WorkerRecord) -> None:
        slot = record.slot
        env = {
            "CODDL_JOB": self._job.name,
            "CODDL_TRACE": "1" if self._job.trace else "",
            "CODDL_WORKER": str(record.number),
            "CODDL_SLOT": str(slot.number),
            "CODDL_REHEARSE": "1" if record.joins else "",
            "CODDL_EPOCH": str(self._epoch),
            "CODDL_SIZE": str(max(1, len(self._slots))),  # of the group it is started for
            "CODDL_MAIN": "1" if record.is_first else "",
        }
        if slot.gpu is not None:
            env["CUDA_VISIBLE_DEVICES"] = slot.gpu
            env |= {} if self._is_plain else nccl_variables(self._job, record.number)
        if self._job.id or self._is_plain:
            assert self.store is not None
            slots = self._slots if slot in self._slots else (*self._slots, slot)
            ranks = RankTable.of(slots, self.store, self.restarts)
            env |= launcher_variables(self._job, slot, ranks) if self._is_plain else {}
            env |= pool_variables(self._job, slot, ranks) if self._job.id else {}
        about = {"worker": record.number, "slot": slot.number, "gpu": slot.gpu}
        self.worker_host(slot.node).do({"do": "start", **about, "argv": self._job.argv, "env": env})

    def send(self, numbers: Iterable[int], message: Message) -> None:
        """Send a message to workers; those that are gone hear nothing."""
        to: dict[str, list[int]] = {}
        for number in numbers:
            if number in self._workers:
                record = self._workers[number]
                record.history.told(message)
                to.setdefault(record.node, []).append(number)
        for node, theirs in to.items():
            self.worker_host(node).do({"do": "tell", "to": theirs, "word": message})

    def build(
        self,
        plan: GroupPlan,
        to: Iterable[int],
        image: Path | None,
        *,
        regroup: bool,
        park: bool = False,
    ) -> None:
        """Have workers build the group of a plan: beside their own, or in its place.

        `park`: workers that leave for no other group stay, without their GPUs.
        """
        assert self.store is not None
        slots = [n.slot for n in self.records if n.number in plan.members + plan.bridge]
        # NCCL refuses two workers on one GPU.
        gpus = {(slot.node, slot.gpu) for slot in slots if slot.gpu is not None}
        may_share = ON_ONE_GPU in self._job.env and all(slot.gpu is not None for slot in slots)
        message = {
            "do": "regroup" if regroup else "prepare",
            "generation": plan.generation,
            "members": plan.members,
            "counts": plan.counts,
            "bridge": plan.bridge,
            "image": None if image is None else str(image),
            "store": self.store,
            "park": park and not plan.members,
            "backend": "nccl" if gpus and (may_share or len(gpus) == len(slots)) else "gloo",
        }
        self.send(to, message)
        if regroup:
            self.guard(plan.members)

    def unpark(self, number: int) -> None:
        """Give a parked worker its GPU again."""
        record = self._workers[number]
        record.history.told({"do": "unpark"})
        about = {"worker": number, "slot": record.history.slot}
        self.worker_host(record.node).do({"do": "unpark", **about})

    def begin_turn(self, number: int) -> None:
        """Have a worker go on that waits for its turn, once its slot is the job's again.

        Its host tells it then; it counts as waiting until it says that its turn has begun.
        """
        record = self._workers[number]
        about = {"worker": number, "slot": record.history.slot}
        self.worker_host(record.node).do({"do": "begin turn", **about})

    def save(self, node: str, path: str) -> None:
        """Have an image made durable on the node where it lies; `on_saved` follows."""
        self._saves[node] += 1
        self.worker_host(node).do({"do": "save", "path": path})

    @property
    def is_saving(self) -> bool:
        """Tell whether an image is being made durable. For any thread."""
        return any(self._saves.values())

    # Ends.

    def stop(self, number: int) -> None:
        """End a worker that owns nothing."""
        if number in self._workers:
            self._workers[number].is_unwanted = True
            self.send([number], {"do": "stop"})
            self.kill(number)

    def kill(self, number: int, signal_: int = signal.SIGKILL) -> None:
        """Kill a worker that can't be helped; it counts as lost."""
        record = self._workers.get(number)
        if record is None:
            return
        if record in self._waiting:
            self._waiting.remove(record)
            self._loop.post(lambda: self._part(number, LOST))
        else:
            request = {"do": "kill", "worker": number, "signal": int(signal_)}
            self.worker_host(record.node).do(request)

    def restart_together(self) -> None:
        """Kill all workers: they may wait for one that died, in a group that we know nothing of."""
        self.restarts += 1
        self.open()  # in the old store lies what they have said to each other
        for record in self.records:
            record.is_unwanted = True
            self.kill(record.number)

    def stop_all(self) -> None:
        """Ask every worker to end, and see to it that it does."""
        for record in self.records:
            record.is_unwanted = True
            self.kill(record.number, signal.SIGTERM)
        self._loop.alarm("stop", self._loop.now_s() + self._job.grace_s, self.kill_all)

    def kill_all(self) -> None:
        for number in list(self._workers):
            self.kill(number)

    def expect_exit(self, number: int) -> None:
        """Kill a leaver that does not leave."""
        at_s = self._loop.now_s() + LEAVER_WAIT_S
        self._loop.alarm(("leaver", number), at_s, lambda: self.kill(number))

    def guard(self, numbers: Iterable[int]) -> None:
        """Kill workers, from now on, whenever their main thread is silent for too long."""
        for number in numbers:
            if number in self._workers:
                self._workers[number].heard_s = self._loop.now_s()
                self._watch(number)

    def _watch(self, number: int) -> None:
        record = self._workers.get(number)
        if record is None or record.history.has_ended or record.history.is_out:
            return
        limit_s, silent_s = self._job.watchdog_s, self._loop.now_s() - record.heard_s
        may_be_silent = record.is_resting or record.history.awaits_turn
        if silent_s < limit_s or may_be_silent:
            at_s = (self._loop.now_s() if may_be_silent else record.heard_s) + limit_s
            self._loop.alarm(("watchdog", number), at_s, lambda: self._watch(number))
            return
        self._listener.tell({"is": "problem", **job_errors.silent(number, silent_s).parts()})
        self.kill(number)

    def _part(self, number: int, code: int, because: str | None = None) -> None:
        """Let go of a worker that has exited."""
        if (record := self._workers.pop(number, None)) is None:
            return  # one that we had given up before
        for name in ("leaver", "watchdog"):
            self._loop.silence((name, number))
        self._listener.on_gone(record, code, because)

    # Messages from worker hosts.

    def _on_word(self, node: str, word: Message) -> None:
        if self._is_closing:
            return
        match word["is"]:
            case "said" | "forked" | "exited":
                # A node that was not asked when we took over may have one with the same number.
                record = self._workers.get(word["worker"])
                if record is not None and record.node == node:
                    self._on_worker(record, word)
                elif word["is"] == "exited" and self._hosts_listener is not None:
                    self._hosts_listener.on_unknown_gone(node, word)
            case "saved" | "unsaved":
                self._saves[node] -= self._saves[node] > 0  # or a lead before us has asked
                self._listener.on_saved(word)
            case "rendezvous":
                self._on_rendezvous(word)
            case "storeless":
                if word["store"] == self._store_name:
                    self._on_storeless(word["because"])
            case "gone":
                self._lose_node(node, word["because"])
            case _:
                self._on_host_word(node, word)

    def _on_worker(self, record: WorkerRecord, word: Message) -> None:
        """Take in what becomes of a worker, or what it says."""
        match word["is"]:
            case "said":
                self._hear(record, word["word"])
            case "forked":
                record.history.pid = word["pid"]
                self._listener.tell(word)
            case "exited":
                self._part(record.number, word["code"], word.get("because"))

    def _on_host_word(self, node: str, word: Message) -> None:
        """Handle a message about a worker host itself."""
        match word["is"]:
            case "warm":
                if self.gpus is None:
                    self.gpus = word["gpus"]
                    self._listener.tell(word)
                    self._listener.on_warm()
            case "lost":
                error = TrainingError(word["what"], word["because"], word["try"])
                if any(record.history.has_arrived for record in self.records):  # elsewhere it runs
                    self._listener.tell({"is": "problem", **error.parts()})
                else:  # one that was killed is not the interpreter's fault
                    self._listener.fail(error, 2 if word["code"] >= 0 else 1)
            case _:
                assert self._hosts_listener is not None, word
                self._on_connection_word(self._hosts_listener, node, word)

    def _on_connection_word(self, hosts_listener: HostsListener, node: str, word: Message) -> None:
        match word["is"]:
            case "living":
                hosts_listener.on_living(node, word)
            case "refused" if word["why"] == "attempt":
                hosts_listener.on_superseded()
            case "refused" | "unreachable":
                hosts_listener.on_unreachable(node)
            case unknown:
                raise AssertionError(unknown)

    def _hear(self, record: WorkerRecord, message: Message) -> None:
        record.hear(message, self._loop.now_s())
        self._epoch = message.get("epoch", self._epoch)
        self._listener.on_word(record, message)

    def _lose_node(self, node: str, because: str) -> None:
        """Count all workers on a node as lost: nothing is heard of them any more."""
        if self._hosts_listener is not None:
            self._hosts_listener.on_lost(node)
        for _ in range(self._saves.pop(node, 0)):
            self._listener.on_saved({"is": "unsaved", **job_errors.unsaved(because).parts()})
        if node == self._lead_node:
            self._on_storeless(because)
        for record in [each for each in self.records if each.node == node]:
            record.history.image = None  # it is out of reach
            self._part(record.number, LOST, because)

    # The store.

    @property
    def _store_name(self) -> str:
        """Name the store asked for last; a worker host that hosts it has dropped every other."""
        return f"{self._job.attempt}.{self._stores_asked}"

    def _ask_store(self) -> None:
        self._stores_asked += 1
        request = {"do": "rendezvous", "port": self._job.port, "store": self._store_name}
        self.worker_host(self._lead_node).do(request)

    def _on_rendezvous(self, word: Message) -> None:
        if word["store"] != self._store_name:
            return
        if "error" in word:
            code = 2 if self._job.port else 1  # a free port was not chosen by the user
            self._listener.fail(job_errors.no_port(self._job.port, word["error"]), code)
            return
        self._stores_lost = 0
        self.store = (word["host"], word["port"])
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._start(record)
        self._listener.on_store()

    def _on_storeless(self, because: str) -> None:
        self.store = None
        self._stores_lost += 1
        if self._stores_lost > STORES_MAX:
            self._listener.fail(job_errors.no_store(because), 1)
            return
        self._ask_store()
        self._listener.on_store_lost()
