"""A job on a node that is led from elsewhere: its worker host, and its lead's connection.

Without a lead the workers live on; what they say is remembered, and exits are told to the
next lead. A start waits until the slot is the job's, by the word of the node's agent, and empty;
so does a worker that was parked, or waits for its turn.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coddl.runtime.supervisor.hosted_workers import HostedListener, WorkersOpener
from coddl.runtime.supervisor.loop import MessageChannel, SupervisorLoop
from coddl.runtime.supervisor.slots import HostingAgent, JobEnvironment, SlotProcess
from coddl.runtime.supervisor.worker_history import WorkerHistory
from coddl.runtime.supervisor.worker_host import LOST
from coddl.runtime.wire import Message

FETCH_AGAIN_S: Final = 2.0
SLOT_WAIT_S: Final = 10.0  # how long a start waits for its slot, unless that is taken by turns


@dataclass(frozen=True, slots=True)
class JobHostContext:
    """What the job hosts of a node share."""

    loop: SupervisorLoop
    agent: HostingAgent
    open_workers: WorkersOpener
    is_free: Callable[[int, "JobHost | None"], bool]  # whether nothing, or none but its, is there
    on_change: Callable[[], None]  # called when a worker has come or gone
    orphan_s: float


class JobHost:
    """One job's worker host and the lead it follows now. A later lead may take it over."""

    def __init__(
        self, context: JobHostContext, job: str, attempt: int, environment: JobEnvironment
    ) -> None:
        self.job = job
        self.attempt = attempt  # of the newest lead
        self._context = context
        self._lead: MessageChannel | None = None
        self._held: list[tuple[float, Message]] = []  # requests, and until when they may wait
        self._unheard: list[Message] = []  # exits that no lead was told of
        self._folder = environment.folder
        self._has_remote = environment.remote is not None
        if self._has_remote:  # else its lead has made it, for all
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
        self._behind: list[Message] | None = None  # requests that wait for a checkpoint to come
        self._is_ending = False
        listener = HostedListener(self._on_word, self._on_log, lambda: self.attempt)
        opened = context.open_workers(job, environment, listener)
        self._worker_host, self._writer, self._stash = opened

    @property
    def lead(self) -> MessageChannel | None:
        """Give the connection of the lead that it follows; None without one."""
        return self._lead

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    @property
    def is_gone(self) -> bool:
        """Tell whether it has ended, nothing of it lives, and what it was saving is saved."""
        return self._is_ending and not self._worker_host.histories and not self._writer.is_busy

    @property
    def held(self) -> dict[int, SlotProcess]:
        """Tell on which slots something of it lives, or waits though no turn will come.

        Of two on a slot that is the one that waits: it is to go before the other.
        """
        return {
            each.slot: self._process(each)
            for each in sorted(self._worker_host.histories, key=lambda each: each.awaits_turn)
            if not (each.is_parked or self._will_have_turn(each))
        }

    @property
    def parked(self) -> list[SlotProcess]:
        """Give the processes of its workers that are parked or wait for a turn that will come."""
        return [
            self._process(each)
            for each in self._worker_host.histories
            if each.is_parked or self._will_have_turn(each)
        ]

    def _process(self, worker: WorkerHistory) -> SlotProcess:
        return SlotProcess(self.job, self.attempt, worker.pid, worker.gpu, worker.awaits_turn)

    def _will_have_turn(self, worker: WorkerHistory) -> bool:
        """Tell whether a worker is not at work, but waits for its turn."""
        return worker.awaits_turn and self._context.agent.takes_turns(self.job, worker.slot)

    # The lead.

    def follow(self, lead: MessageChannel, attempt: int) -> None:
        """Take requests from this lead alone from now on; first tell it which workers live."""
        self._hang_up()
        self._held.clear()
        self._behind = None
        self._context.loop.silence(("orphan", self))
        self.attempt, self._lead = attempt, lead
        living = [history.as_data() for history in self._worker_host.histories]
        gone, self._unheard = self._unheard, []
        lead.send(
            {"is": "living", "workers": living, "gone": gone}
            | {
                "generation": self._worker_host.generation,
                "newest": self._worker_host.newest_worker,
            }
        )
        self._context.on_change()  # workers that live are of this attempt now

    def take(self, lead: MessageChannel, request: Message) -> None:
        """Do what the lead asks; what an earlier one still had to say is not heard."""
        if lead is not self._lead or self._is_ending:
            return
        if self._behind is not None and request["do"] not in ("kill", "dismiss"):
            self._behind.append(request)  # workers must hear things in order
            return
        match request["do"]:
            case "tell" if self._has_remote and _begins_here(request):
                self._behind = []
                self._fetch(lead, request)
            case "start":
                request["env"]["CODDL_CHECKPOINT_DIR"] = str(self._folder)  # as it is called here
                self._hold(request)
            case "unpark" | "begin turn" as do:
                self._drop(do, request["worker"])
                self._hold(request)
            case "tell" if request["word"]["do"] == "end turn":
                for worker in request["to"]:
                    self._drop("begin turn", worker)
                self._worker_host.do(request)
            case "kill" if self._drop("start", request["worker"]):
                self._on_word({"is": "exited", "worker": request["worker"], "code": LOST})
            case "dismiss":
                self.end()
            case _:
                self._worker_host.do(request)

    def _fetch(self, lead: MessageChannel, request: Message) -> None:
        """Bring the checkpoint that a group begins from to this node, then tell its workers."""
        if lead is not self._lead or self._is_ending:
            return

        def on_end(found: Path | Exception) -> None:
            if lead is not self._lead or self._is_ending or self._behind is None:
                return
            if isinstance(found, Exception):
                text = f"{request['word']['image']} can't be fetched: {found}; trying again"
                self._context.agent.on_log(self.job, -1, None, "coddl", text)
                at_s = self._context.loop.now_s() + FETCH_AGAIN_S
                self._context.loop.alarm(("fetch", self), at_s, lambda: self._fetch(lead, request))
                return
            word = {**request["word"], "image": str(found)}
            self._worker_host.do({**request, "word": word})
            behind, self._behind = self._behind, None
            for each in behind:
                self.take(lead, each)

        self._writer.fetch(Path(request["word"]["image"]), on_end)

    def leave(self, lead: MessageChannel) -> None:
        """Take note that a lead is gone; its workers have some time to be found by another."""
        if lead is self._lead:
            self._lead = None
            self._held.clear()
            has_news = bool(self._worker_host.histories or self._unheard)
            if self._is_parked:
                return
            if not has_news or not self._context.agent.expects(self.job):
                self.end()  # there is nothing to find, or no lead will come to find it
                return
            at_s = self._context.loop.now_s() + self._context.orphan_s
            self._context.loop.alarm(("orphan", self), at_s, self.end)

    def _hold(self, request: Message) -> None:
        """Do it as soon as the slot is the job's, and empty."""
        self._held.append((self._context.loop.now_s() + SLOT_WAIT_S, request))
        self.look_again()

    def look_again(self) -> None:
        """Start workers whose slots are free by now; refuse those that have waited too long.

        Without a lead and without a slot no lead will come: a lead that died in the middle of a
        shrink has left those whom it had not let go yet.
        """
        if self._lead is None and not self._context.agent.expects(self.job) and not self._is_parked:
            self.end()
            return
        now_s = self._context.loop.now_s()
        held, self._held = self._held, []
        for until_s, request in held:
            slot, worker = request["slot"], request["worker"]
            owner = self._context.agent.owner_of(slot)
            itself = self if request["do"] == "begin turn" else None
            if owner == (self.job, self.attempt) and self._context.is_free(slot, itself):
                self._worker_host.do(request)
                self._context.on_change()
            elif self._context.agent.takes_turns(self.job, slot):
                self._held.append((now_s + SLOT_WAIT_S, request))  # from when that is over
            elif now_s < until_s:
                self._held.append((until_s, request))
            elif request["do"] != "start":
                self._worker_host.kill(worker)
            else:
                because = f"slot {slot} is assigned to {_named(owner)}"
                if owner == (self.job, self.attempt):
                    because = f"an earlier process is still running on slot {slot}"
                word = {"is": "exited", "worker": worker, "code": LOST, "because": because}
                self._on_word(word)
        if self._held:
            at_s = min(until_s for until_s, _ in self._held)
            self._context.loop.alarm(("slot", self), at_s, self.look_again)

    @property
    def _is_parked(self) -> bool:
        """Tell whether all of its workers are parked, and may be."""
        histories = self._worker_host.histories
        is_parked = bool(histories) and all(history.is_parked for history in histories)
        return is_parked and self._context.agent.keeps_parked(self.job)

    # The end.

    def kill_slot(self, slot: int) -> None:
        """Kill the worker on a slot; not one that waits there for its turn."""
        for history in self._worker_host.histories:
            if history.slot == slot and not (history.is_parked or self._will_have_turn(history)):
                self._worker_host.kill(history.worker)

    def end(self, *, hang_up: bool = False) -> None:
        """Kill all workers; once they are gone, so is the job host, and its lead sees the end."""
        if hang_up:
            self._hang_up()
        if not self._is_ending:
            self._is_ending = True
            self._held.clear()
            self._context.loop.silence(("orphan", self))
            self._context.loop.silence(("slot", self))
            self._context.loop.silence(("fetch", self))
            self._worker_host.kill_all()
            self._context.on_change()

    def close(self) -> None:
        """Let go of everything; workers that still live are killed."""
        self._is_ending = True
        self._worker_host.close()
        self._writer.close(wait=False)
        if self._stash is not None:
            shutil.rmtree(self._stash, ignore_errors=True)
        self._hang_up()

    def _hang_up(self) -> None:
        lead, self._lead = self._lead, None
        if lead is not None:
            lead.close()

    def _drop(self, do: str, worker: int) -> bool:
        """Forget a request that is held; tell whether there was one."""
        dropped = (do, worker)
        kept = [held for held in self._held if (held[1]["do"], held[1]["worker"]) != dropped]
        was_held = len(kept) < len(self._held)
        self._held = kept
        return was_held

    # Words.

    def _on_word(self, word: Message) -> None:
        if self._lead is not None:
            self._lead.send(word)
        else:
            self._keep(word)
        if word["is"] == "exited":
            self._held = [held for held in self._held if held[1]["worker"] != word["worker"]]
        if word["is"] in ("exited", "forked", "saved", "unsaved") or _changes_slot(word):
            self._context.on_change()

    def _keep(self, word: Message) -> None:
        """Do, without a lead, what must not wait for the next one."""
        match word:
            case {"is": "exited"}:
                self._unheard.append(word)
            case {"is": "said", "word": {"is": "image", "path": path}}:  # it was about to leave
                self._worker_host.do({"do": "save", "path": path})

    def _on_log(self, history: WorkerHistory, stream: str, text: str) -> None:
        self._context.agent.on_log(self.job, history.worker, history.rank, stream, text)


def _changes_slot(word: Message) -> bool:
    """Tell whether a worker says that it has given up its GPU, or its turn, or has one again."""
    if word["is"] != "said":
        return False
    said = word["word"]
    return said["is"] in ("turn ended", "turn begun") or said.get("parked") is not None


def _named(owner: tuple[str, int] | None) -> str:
    return "no job" if owner is None else f"job {owner[0]}, attempt {owner[1]}"


def _begins_here(request: Message) -> bool:
    """Tell whether a group begins from a checkpoint that its first worker will read here."""
    word = request["word"]
    return word.get("image") is not None and word["members"][0] in request["to"]
