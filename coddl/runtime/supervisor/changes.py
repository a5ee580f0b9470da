"""How the group has changed: which generation, for whom, and how long each part of it took."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from coddl.runtime.supervisor.generations import GroupPlan
from coddl.runtime.supervisor.trace_events import TraceEvents
from coddl.runtime.supervisor.worker_record import WorkerRecord
from coddl.runtime.wire import Message

MADE_MAX: Final = 100  # remembered; a job may run for weeks
PAUSE_PARTS: Final = ("boundary_s", "state_s", "swap_s")

Kind = Literal[
    "started", "restarted", "resumed", "resized", "moved", "rebalanced", "regrouped", "suspended"
]
Since = Literal["start", "command", "schedule", "failure", "decision"]


@dataclass(frozen=True, slots=True)
class Due:
    """From when on a change was due, and because of what."""

    at_s: float
    since: Since  # "decision": the supervisor's own


@dataclass(slots=True)
class GroupChange:
    """One generation on its way, from when it was due to the last worker's swap."""

    kind: Kind
    plan: GroupPlan
    old: tuple[int, ...]  # the members before
    due: Due
    prepare_s: float  # when the group began to be built
    commit_s: float | None = None
    step: int = 0
    parts_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PAUSE_PARTS, 0.0))

    def swapped(self, worker: int, message: Message) -> None:
        """Take in that a worker has changed; a pause is that of the workers that were training.

        They wait for joiners to take the state; for what else joiners do, none waits.
        """
        self.step = max(self.step, int(message.get("step") or 0))
        for name in PAUSE_PARTS if worker in self.old else ("state_s",):
            part_s = float((message.get("pause") or {}).get(name) or 0.0)
            self.parts_s[name] = max(self.parts_s[name], part_s)

    def as_data(self, now_s: float) -> Message:
        """Tell how it went."""
        assert self.commit_s is not None
        return {
            "is": self.kind,
            "generation": self.plan.generation,
            "from": len(self.old),
            "to": len(self.plan.members),
            "members": list(self.plan.members),
            "step": self.step,
            "pause_s": sum(self.parts_s.values()),
            "prepare_s": self.commit_s - self.due.at_s,
            **self.parts_s,
            "serving_s": now_s - self.due.at_s,
            "since": self.due.since,
        }


class ChangeHistory:
    """The change under way, and those that were made."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.made: list[Message] = []  # the newest
        self.count = 0  # of all
        self.members: tuple[int, ...] = ()  # of the last group that stood
        self.generation = 0  # its number
        self.trace: TraceEvents | None = None
        self._now: GroupChange | None = None

    def begin(self, plan: GroupPlan, due: Due, *, regroup: bool, slept: bool) -> None:
        """Note that a group is to be built. Whatever was under way before is forgotten."""
        kind = self._kind(plan, regroup=regroup, slept=slept)
        due = Due(self._now_s(), "decision") if kind == "rebalanced" else due
        self._now = GroupChange(kind, plan, self.members, due, self._now_s())
        if regroup:  # nothing is left to commit: a worker that has built it changes
            self.commit(plan.generation)

    def commit(self, generation: int) -> GroupPlan:
        """Note that workers are to change now; give what to."""
        assert self._now is not None
        assert self._now.plan.generation == generation
        self._now.commit_s = self._now_s()
        return self._now.plan

    def cancel(self) -> None:
        """Forget what is under way."""
        self._now = None

    def swapped(self, worker: int, message: Message) -> int | None:
        """Note that a worker has changed; give the virtual nodes it owns now, if this is news."""
        change = self._now
        if change is None or change.plan.generation != message["generation"]:
            return None
        change.swapped(worker, message)
        return dict(zip(change.plan.members, change.plan.counts, strict=True)).get(worker, 0)

    def complete(self, alive: Mapping[int, WorkerRecord]) -> Message | None:
        """Give the change under way, now that it is made; None if it came to nothing."""
        change = self._now
        if change is None or change.commit_s is None:
            return None
        now_s, self._now = self._now_s(), None
        if change.plan.members and not alive.keys() & set(change.plan.members):
            return None
        self.members, self.generation = change.plan.members, change.plan.generation
        records = [alive[member] for member in self.members if member in alive]
        slots = [each.history.slot for each in records]
        pids = {each.number: each.history.pid for each in records}
        self.made.append({**change.as_data(now_s), "slots": slots, "pids": pids})
        del self.made[:-MADE_MAX]
        self.count += 1
        if self.trace is not None:
            times_s = (change.due.at_s, change.prepare_s, change.commit_s, now_s)
            for name, start_s, end_s in zip(
                ("start", "build", "swap"), times_s[:-1], times_s[1:], strict=True
            ):
                self.trace.phase(self.generation, f"{change.kind}: {name}", start_s, end_s)
        return self.made[-1]

    def _kind(self, plan: GroupPlan, *, regroup: bool, slept: bool) -> Kind:
        """Name a change as people would."""
        if not plan.members:
            return "suspended"
        if plan.fresh:
            return "started" if not self.count else "resumed" if slept else "restarted"
        if regroup and slept:
            return "resumed"
        if regroup:
            return "regrouped"
        if plan.members == self.members:
            return "rebalanced"
        return "moved" if len(plan.members) == len(self.members) else "resized"
