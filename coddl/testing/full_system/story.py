"""The story of a run: what happened, when, in plain words."""

from coddl.core.pool import records as r
from coddl.testing.full_system.virtual_time import VirtualTime


class Story:
    """Lines, each with its time."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self.lines: list[str] = []

    def tell(self, words: str) -> None:
        """Note what has just happened."""
        self.lines.append(f"{self._time.now_s:9.3f}s  {words}")

    @property
    def now_s(self) -> float:
        """The time of the world."""
        return self._time.now_s

    @property
    def text(self) -> str:
        """All of it."""
        return "\n".join(self.lines)


def words_of(record: r.Record) -> str:
    """Say what a record of the journal says."""
    match record:
        case r.Decided(policy=policy, why=why, targets=targets, waiting=waiting):
            goes = [f"job {job} → {list(t.slots)} ({t.reason})" for job, t in targets.items()]
            waits = [f"job {job} waits: {w.sentence}" for job, w in waiting.items()]
            return f"decided ({policy}; {why}): {'; '.join(goes + waits) or 'no change'}"
        case r.DecisionFailed(policy=policy, trouble=trouble):
            return f"the decision failed ({policy}): {trouble.sentence}"
        case r.Aimed(job=job, attempt=attempt, generation=generation, slots=slots, lead=lead):
            does = f"is given slots {list(slots)}" if slots else "is told to leave"
            adopts = ", its workers adopted" if record.adopt else ""
            return f"job {job} {does} (attempt {attempt}.{generation}, lead {lead}{adopts})"
        case r.RunEnded(job=job, attempt=attempt, outcome=outcome, step=step, trouble=trouble):
            because = f": {trouble.sentence}" if trouble else ""
            return f"job {job} attempt {attempt} ended: {outcome} at step {step}{because}"
        case r.RunChanged(job=job, attempt=attempt, kind=kind, slots=slots, step=step):
            return f"job {job} attempt {attempt} {kind} on {list(slots)} at step {step}"
        case r.SlotFreed(slot=slot, job=job):
            return f"slot {slot} is free of job {job}"
        case r.NodeJoined(node=node, boot=boot, slots=slots):
            return f"node {node} joined as {boot} with slots {list(slots)}"
        case r.NodeLost(node=node, because=because):
            return f"node {node} counts as lost: {because}"
        case r.JobSubmitted(job=job, spec=spec):
            return f'job {job} "{spec.name}" was submitted: {spec.gpus_min}..{spec.gpus_max} GPUs'
        case _:
            return f"{r.kind_of(type(record))}: {record}"
