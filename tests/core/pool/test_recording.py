"""What is recorded of a pool, from its records."""

from dataclasses import dataclass, field

from coddl.core.pool import records as r
from coddl.core.pool.recording import RecordedJob, Recording, TimedRecord, recorded
from coddl.core.pool.spec import JobSpec, Launch

NODE = "n1"


@dataclass
class Story:
    """The records of a pool with four GPUs and one job."""

    records: list[TimedRecord] = field(default_factory=list)

    def at(self, at_s: float, *records: r.Record) -> "Story":
        self.records += [TimedRecord(at_s, record) for record in records]
        return self

    def job(self) -> RecordedJob:
        return recorded(self.records).jobs[1]

    def recording(self) -> Recording:
        return recorded(self.records)


def decided(slots: tuple[int, ...], *, most: int = 4, **more: object) -> r.Decided:
    told: dict[str, object] = {"policy": "afs-l", "seed": 1, "gpus": 4, "why": "a reason"}
    told |= {"targets": {1: r.Target(slots, "a reason")} if slots else {}, "waiting": {}}
    row = r.DecisionRow(1, 0, 1, most, None, {}, len(slots))
    return r.Decided(**{**told, "rows": (row,), **more})  # type: ignore[arg-type]


def aimed(generation: int, *slots: int, attempt: int = 1) -> r.Aimed:
    return r.Aimed(1, attempt, generation, slots, NODE, "a reason")


def begun() -> Story:
    """A job that starts on one GPU at 10 s, trains from 15 s on, and has four from 40 s on."""
    devices = tuple(r.Device(index, "a100") for index in range(4))
    spec = JobSpec(name="bert", launch=Launch(argv=("train.py",)), gpus_max=4)
    return (
        Story()
        .at(0.0, r.NodeJoined(NODE, "boot", "host", devices, (0, 1, 2, 3)))
        .at(10.0, r.JobSubmitted(1, spec), decided((0,), most=1), aimed(1, 0))
        .at(14.0, r.RunPrepared(1, 1, None, 100, workers_max=64))
        .at(15.0, r.RunChanged(1, 1, 1, "started", 0, (0,), 0, 0.0, 5.0), r.RunStepped(1, 1, 1))
        .at(38.0, decided((0, 1, 2, 3)), aimed(2, 0, 1, 2, 3))
        .at(40.0, r.RunChanged(1, 1, 2, "resized", 1, (0, 1, 2, 3), 25, 0.5, 2.0))
    )


def test_a_job_that_ends_tells_what_it_did_at_each_size() -> None:
    job = begun().at(65.0, r.RunEnded(1, 1, "succeeded", 75)).job()
    assert job.start_s == 5.0
    assert job.step_s == {1: 1.0, 4: 0.5}
    assert job.work_done == 75.0
    assert job.work_by(52.5) == 50.0
    assert (job.prepares_s, job.pauses_s) == ([1.5], [0.5])
    assert job.opened_s == 38.0, "until then a decision could give it one GPU at most"
    assert [tuple(each) for each in job.shares] == [(10.0, 1), (38.0, 4), (65.0, 0)]
    assert job.reallocations == 1


def test_a_job_that_trains_still_is_recorded_up_to_the_last_record() -> None:
    recording = begun().at(50.0, r.LossMeasured(1, 1, 45, 2.0)).recording()
    job = recording.jobs[1]
    assert recording.until_s == 50.0
    assert job.step_s == {1: 1.0, 4: 0.5}
    assert job.job.remaining == 55


def test_steps_that_are_redone_after_a_loss_are_work_too() -> None:
    lost = begun().at(50.0, r.NodeLost(NODE, "boot", "its lease has run out"))
    job = lost.at(60.0, r.LossMeasured(1, 1, 45, 2.0)).job()
    assert job.lost_runs == 1
    assert job.shares[-1] == (50.0, 0)
    assert job.reallocations == 2


def test_what_users_did_is_recorded() -> None:
    story = begun().at(41.0, r.JobPrioritised(1, 5, "ada")).at(42.0, r.JobBounded(1, 2, 2, "ada"))
    assert [each.at_s for each in story.job().actions] == [41.0, 42.0]


def test_the_cool_down_is_what_explains_all_waits() -> None:
    """Twice a decision waits until 10 s after one of the changes."""
    waits = decided((), wake_at_s=48.0, wake_why="bert finished; cool-down over")
    story = begun().at(43.0, waits).at(44.0, waits)
    assert story.recording().cool_down_s == 10.0
    assert begun().recording().cool_down_s is None


def test_gpus_and_policies_are_recorded_as_they_change() -> None:
    story = begun().at(50.0, decided((), gpus=8)).at(60.0, decided((), gpus=8, policy="srtf"))
    assert story.recording().capacity == [(10.0, 4), (50.0, 8)]
    assert story.recording().policies == [(10.0, "afs-l"), (60.0, "srtf")]
