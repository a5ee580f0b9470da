"""What must hold at every moment, whatever goes wrong: one function for each.

The truth is the journal, as this module folds it by itself, and the workers as they really are:
never what the server or an agent believes. A broken invariant ends the run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from coddl.agent.job_runner import JobRun
from coddl.core.pool import records as r
from coddl.core.pool.job import JobState
from coddl.core.pool.state import LOSSES_MAX, Pool
from coddl.server.folding import UnreadableRecord, record_of
from coddl.server.store import HistoryQuery, HistoryRow, StoredRecord
from coddl.testing.full_system.story import Story, words_of
from coddl.testing.full_system.workers import Worker


class Broken(NamedTuple):
    """An invariant that did not hold."""

    invariant: str
    sentence: str
    at_s: float


class Invariants:
    """Checks what happens as it happens; keeps the first thing that is wrong."""

    def __init__(self, story: Story, workers: Mapping[int, Worker]) -> None:
        self.pool = Pool()  # as the journal has it
        self.broken: Broken | None = None
        self.records = 0
        self._story = story
        self._workers = workers
        self._names: dict[str, int] = {}  # of jobs in the journal
        self._adopting: set[tuple[int, int]] = set()  # jobs and attempts
        self._maybe_late: set[int] = set()  # jobs that the next decision may not be about
        self._saved: dict[int, int] = {}  # steps that were told to be saved

    def fail(self, invariant: str, sentence: str) -> None:
        """Note that an invariant does not hold; the first one counts."""
        if self.broken is None:
            self.broken = Broken(invariant, sentence, self._story.now_s)
            self._story.tell(f"BROKEN  {invariant}: {sentence}")

    def tell(self, words: str) -> None:
        """Note what has happened in the story."""
        self._story.tell(words)

    # The journal grows.

    def committed(
        self,
        lines: Sequence[StoredRecord],
        server: Pool,
        history: Callable[[HistoryQuery, int], list[HistoryRow]],
    ) -> None:
        """Take in what the server has just written down; `history` is what its disk has."""
        if self.broken is not None:
            return
        has_decided, records = False, list[r.Record]()
        for line in lines:
            record = record_of(line)
            assert not isinstance(record, UnreadableRecord), record.because
            self._story.tell(f"[{line.seq}] {words_of(record)}")
            self.records += 1
            records.append(record)
            job = self.pool.jobs.get(getattr(record, "job", -1))
            step = job.step if job is not None else 0
            self.runs_only_go_forward(record)
            self.only_the_newest_run_speaks(record)
            self.pool.apply(record, line.at_s)
            self.a_job_is_submitted_once(record)
            if job is not None and job.step < step:
                self.fail("steps only grow", f"job {job.id}: {step}, then {job.step}")
            if isinstance(record, r.JobsForgotten):
                self.what_is_forgotten_is_in_the_history(record, history)
            if isinstance(record, r.Decided):
                has_decided = True
                self.shares_are_within_bounds(record, server)
        submitted = {each.job for each in records if isinstance(each, r.JobSubmitted)}
        if has_decided:
            self.who_waits_is_told_why()
            self._maybe_late.clear()
        else:
            self._maybe_late |= submitted
        self.every_worker_is_an_owners()
        self.the_journal_gives_the_servers_memory(server)

    def runs_only_go_forward(self, record: r.Record) -> None:
        """Attempts and generations grow."""
        if not isinstance(record, r.Aimed):
            return
        if record.adopt:
            self._adopting.add((record.job, record.attempt))
        job = self.pool.jobs[record.job]
        if record.attempt < job.attempt or record.generation <= job.generation:
            was = f"{job.attempt}.{job.generation}"
            now = f"{record.attempt}.{record.generation}"
            self.fail("attempts and generations only grow", f"job {job.id}: {was}, then {now}")

    def only_the_newest_run_speaks(self, record: r.Record) -> None:
        """What is written down of a run is of the job's newest attempt."""
        if isinstance(record, r.RunFact) and record.attempt != self.pool.jobs[record.job].attempt:
            newest = self.pool.jobs[record.job].attempt
            sentence = f"job {record.job}: attempt {newest}, and {words_of(record)}"
            self.fail("only the newest run of a job is heard", sentence)

    def a_job_is_submitted_once(self, record: r.Record) -> None:
        """A request that is repeated takes effect once."""
        if isinstance(record, r.JobSubmitted):
            name = record.spec.name
            if name in self._names:
                both = f"job {self._names[name]} and job {record.job}"
                self.fail("a job is submitted once", f"{name} is {both}")
            self._names[name] = record.job

    def what_is_forgotten_is_in_the_history(
        self,
        forgotten: r.JobsForgotten,
        history: Callable[[HistoryQuery, int], list[HistoryRow]],
    ) -> None:
        """A job that leaves memory has left a row."""
        for job in forgotten.jobs:
            if not history(HistoryQuery(job=job), 1):
                self.fail("what is forgotten is in the history", f"job {job} has no row")

    def shares_are_within_bounds(self, decided: r.Decided, server: Pool) -> None:
        """A job is given as many GPUs as it may have, or none.

        A precheck runs on one GPU, and a job whose lead can't be told anything keeps what it has.
        """
        for number, target in decided.targets.items():
            job, gpus = self.pool.jobs[number], len(target.slots)
            is_precheck = bool(job.spec.launch.precheck) and not job.prechecked and gpus == 1
            is_kept = server.is_deaf(server.jobs[number]) and {*target.slots} == {*job.granted}
            is_within = not gpus or job.gpus_min <= gpus <= job.gpus_max
            if not is_within and not is_precheck and not is_kept:
                bounds = f"{job.gpus_min}..{job.gpus_max}"
                self.fail("shares are within bounds", f"job {number} gets {gpus} of {bounds}")
            if len(set(target.slots)) != gpus:
                self.fail("shares are within bounds", f"job {number} gets a slot twice")

    def who_waits_is_told_why(self) -> None:
        """After a decision, each job that waits has a reason.

        Those that were submitted since the decision before may have come while this one was made.
        """
        for job in self.pool.live_jobs():
            if job.id in self._maybe_late:
                continue
            if job.is_waiting and not job.suspended and not job.target and job.waiting is None:
                self.fail("each job that waits has a reason", f"job {job.id} {job.phase}")

    def the_journal_gives_the_servers_memory(self, server: Pool) -> None:
        """What is folded from the journal is what the server goes by."""
        for name, ours, theirs in _differences(self.pool, server):
            because = f"{name}: the journal gives {ours}, the server has {theirs}"
            self.fail("the journal gives the server's memory", because)
            return

    # Workers.

    def every_worker_is_an_owners(self) -> None:
        """No worker is on a slot that is not its job's, nor on a node that counts as lost."""
        for slot, worker in self._workers.items():
            self.worker_is_an_owners(slot, worker.job, worker.node)

    def worker_is_an_owners(self, slot: int, job: int, node: str) -> None:
        """A worker is on a slot that the journal gives to its job."""
        state = self.pool.nodes.get(node)
        if state is None or not state.is_up:
            sentence = f"job {job} has a worker on slot {slot} of {node}, whose lease is over"
            self.fail("no job is on a lost node", sentence)
        elif job not in self.pool.slots[slot].owners:
            owners = [*self.pool.slots[slot].owners]
            sentence = f"job {job} has a worker on slot {slot}, which is given to jobs {owners}"
            self.fail("no slot has a worker of another job than its owner", sentence)

    def started(self, slot: int, job: int, attempt: int, found: Worker | None, node: str) -> None:
        """A worker has started."""
        self._story.tell(f"worker of job {job} attempt {attempt} starts on slot {slot}")
        if found is not None:
            sentence = f"slot {slot}: job {job} starts beside job {found.job}"
            self.fail("no slot has two workers", sentence)
        self.worker_is_an_owners(slot, job, node)

    def ended(self, slot: int, worker: Worker, because: str) -> None:
        """A worker is gone."""
        self._story.tell(f"worker of job {worker.job} on slot {slot} ends: {because}")

    def began(self, run: JobRun, done: float, left: Sequence[int]) -> None:
        """A training begins from what was saved, though workers of the job may be alive."""
        self._story.tell(f"job {run.job} attempt {run.attempt} trains from step {int(done)} on")
        self.goes_on_from(run.job, int(done))
        if (run.job, run.attempt) in self._adopting and left:
            sentence = f"job {run.job} begins anew, though it has workers on slots {[*left]}"
            self.fail("a new lead adopts the workers that are alive", sentence)

    def goes_on_from(self, job: int, step: int) -> None:
        """A training that begins from what was saved has all of that."""
        if step < self._saved.get(job, 0):
            sentence = f"job {job} goes on at step {step}, not {self._saved[job]}"
            self.fail("what was saved is not lost", sentence)

    def said_saved(self, job: int, step: int) -> None:
        """It was told that a step is saved."""
        self._saved[job] = max(step, self._saved.get(job, 0))

    # Users, and the end.

    def answered(self, name: str, number: int) -> None:
        """A user was told that a job is accepted."""
        if self._names.get(name) != number:
            known = self._names.get(name)
            sentence = f"{name} was accepted as job {number}, and the journal has {known}"
            self.fail("each accepted job is in the journal", sentence)

    def restored(self, server: Pool) -> None:
        """A server has read the journal: a snapshot, and what follows it."""
        self.the_journal_gives_the_servers_memory(server)

    def jobs_fail_for_a_reason(self) -> None:
        """An emulated job fails after so many lost runs only, and is cancelled by users only."""
        for job in self.pool.jobs.values():
            if job.phase == "failed" and job.losses < LOSSES_MAX:
                because = job.trouble.sentence if job.trouble else "nothing"
                self.fail("a job fails for a reason", f"job {job.id}: {because}")
            if job.phase == "cancelled" and not job.cancelled:
                self.fail("a job fails for a reason", f"job {job.id} was not to be cancelled")

    def all_is_over(self, within_s: float) -> None:
        """After all has been mended every job ends, and every slot is given back."""
        left = [f"job {job.id} {job.phase}" for job in self.pool.live_jobs()]
        owned = [slot.slot for slot in self.pool.slots.values() if slot.owners]
        if left or owned or self._workers:
            told = ", ".join(left) or f"slots {owned or [*self._workers]} are not given back"
            self.fail("every job ends", f"{within_s:.0f} s after the last fault: {told}")
        self.jobs_fail_for_a_reason()


def _differences(ours: Pool, theirs: Pool) -> Iterable[tuple[str, object, object]]:
    """Name what is not the same in two pools, of what the journal tells."""
    if ours.jobs.keys() != theirs.jobs.keys():
        yield "jobs", [*ours.jobs], [*theirs.jobs]
        return
    for number, job in ours.jobs.items():
        if (mine := _durable(job)) != (other := _durable(theirs.jobs[number])):
            yield f"job {number}", mine, other
    for name, of in _VIEWS.items():
        if (view := of(ours)) != (other_view := of(theirs)):
            yield name, view, other_view


def _durable(job: JobState) -> tuple[object, ...]:
    return (
        *(job.phase, job.granted, job.target, job.attempt, job.generation, job.lead, job.stop),
        *(job.suspended, job.cancelled, job.gpus_min, job.gpus_max, job.priority, job.waiting),
    )


_VIEWS: dict[str, Callable[[Pool], object]] = {
    "nodes": lambda pool: {
        node.name: (node.boot, node.is_up, node.is_drained, node.version, node.slots)
        for node in pool.nodes.values()
    },
    "slots": lambda pool: {slot.slot: slot.owners for slot in pool.slots.values()},
    "policy": lambda pool: (pool.policy, pool.placement, pool.seed, pool.next_job),
}
