"""A pool's journal, replayed: as it was, and under alternatives."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from coddl.core.errors import UserError
from coddl.core.pool import records as r
from coddl.core.pool.recording import ShareChange, TimedRecord, recorded
from coddl.core.pool.timeline import Capacity
from coddl.sim.recorded_workload import RecordedWorkload, recorded_workload
from coddl.sim.whatif import WhatIf, recorded_run, what_if
from tests.journals import demo_records

RECORDS = demo_records()


def workload(
    records: Sequence[TimedRecord] = RECORDS, since_s: float | None = None, gpus: Sequence[int] = ()
) -> RecordedWorkload:
    return recorded_workload(recorded(records), since_s, gpus=gpus)


@pytest.fixture(scope="module")
def found() -> WhatIf:
    return what_if(workload(gpus=[8]), ["max-min"], [4, 8])


def test_the_replay_of_a_demo_explains_what_has_happened(found: WhatIf) -> None:
    told = found.as_data()
    assert told["jobs"] == 7
    assert told["left_out"] == []
    assert abs(told["replay"]["mean_jct_error"]) < 0.05
    assert told["replay"]["median_job_error"] < 0.05
    assert told["replay"]["within_5_percent"] > 0.8
    assert told["recorded"]["resizes"] == pytest.approx(told["runs"][0]["resizes"], abs=3)
    assert told["recorded"]["utilisation"] == pytest.approx(
        told["runs"][0]["utilisation"], abs=0.05
    )


def test_runs_are_compared_with_what_was_recorded_and_with_its_replay(found: WhatIf) -> None:
    first, four, eight = found.as_data()["runs"]
    assert [each["is_replay"] for each in (first, four, eight)] == [True, False, False]
    assert (four["policy"], four["gpus"], eight["gpus"]) == ("max-min", 4, 8)
    assert first["mean_against_replay"] == 1.0
    assert eight["mean_against_replay"] < 0.8 < four["mean_against_replay"]
    ratio = four["jct_s"]["mean"] / found.as_data()["recorded"]["jct_s"]["mean"]
    assert four["mean_against_recorded"] == pytest.approx(ratio)


def test_the_sentence_says_what_was_not_measured(found: WhatIf) -> None:
    assert "measured" in found.sentence
    assert "taken to scale as the others" in found.sentence


def test_the_sentence_warns_of_few_jobs(found: WhatIf) -> None:
    assert found.sentence.startswith("Only 7 jobs have ended: too few to compare policies.")
    only = np.arange(7) == 3
    one = replace(found, workload=replace(found.workload, succeeded=only))
    assert one.sentence.startswith("Only 1 job has ended: too few to compare policies.")
    assert "half of the" not in one.sentence


def test_the_sentence_says_which_policies_give_all_the_gpus_of_a_range(found: WhatIf) -> None:
    assert "range" not in found.sentence
    rigid = what_if(workload(), ["fifo", "max-min", "srtf"]).sentence
    assert "fifo and srtf give a job all the GPUs of its range (6 jobs with a range)" in rigid
    fixed = replace(found.workload, unrequested=0)
    assert "range" not in what_if(fixed, ["fifo"]).sentence


def test_a_job_is_replayed_with_the_gpus_it_asked_for() -> None:
    def asking(each: TimedRecord) -> TimedRecord:
        at_s, record = each
        if isinstance(record, r.JobSubmitted):
            return TimedRecord(at_s, replace(record, spec=replace(record.spec, gpus_requested=2)))
        return each

    asked = workload(list(map(asking, RECORDS)))
    assert asked.unrequested == 0
    assert workload().trace.gpus_requested.tolist() == workload().trace.gpus_max.tolist()
    assert asked.trace.gpus_requested.tolist() == np.minimum(2, asked.trace.gpus_max).tolist()
    assert "range" not in what_if(asked, ["fifo"]).sentence


def test_what_was_recorded_is_a_run_of_the_report(found: WhatIf) -> None:
    was, replayed, *others = found.report_runs
    assert was.key.policy.endswith("(recorded)")
    assert replayed.key.policy.endswith("(replayed)")
    assert len(others) == 2
    assert was.metrics().avg_jct_s == pytest.approx(found.as_data()["recorded"]["jct_s"]["mean"])


def test_a_report_has_the_ratios_of_the_table(found: WhatIf) -> None:
    at, numbers = found.against_replay
    told = found.as_data()
    wanted = [each["mean_against_replay"] for each in told["runs"]]
    assert found.report_runs[at].key.policy.endswith("(replayed)")
    assert [row["slower"] for row in numbers[at:]] == wanted
    assert [row["jobs"] for row in numbers] == [7.0] * 4
    recorded_s, replayed_s = numbers[0]["avg_jct_s"], numbers[1]["avg_jct_s"]
    assert numbers[0]["slower"] == pytest.approx(recorded_s / replayed_s)


def test_jobs_that_were_there_before_a_time_are_replayed_with_what_they_had_left() -> None:
    submitted = {record.job: at_s for at_s, record in RECORDS if isinstance(record, r.JobSubmitted)}
    whole, later = workload(), workload(since_s=submitted[4] + 1.0)
    assert whole.numbers == (1, 2, 3, 4, 5, 6, 7)
    assert later.numbers[-4:] == (4, 5, 6, 7)
    assert 1 not in later.numbers, "it was over"
    row = later.numbers.index(2)
    assert later.trace.submitted_s[row] == 0.0
    assert 0 < later.trace.iterations[row] < whole.trace.iterations[1] == 256


def test_a_job_that_was_cancelled_leaves_after_as_much_work() -> None:
    end = next(
        n
        for n, (_, record) in enumerate(RECORDS)
        if isinstance(record, r.RunEnded) and record.job == 2
    )
    at_s, record = RECORDS[end]
    assert isinstance(record, r.RunEnded)
    ended = replace(record, outcome="cancelled", step=record.step - 6)
    cancelled = TimedRecord(at_s, r.JobCancelled(2, "ada"))
    found = workload([*RECORDS[:end], cancelled, TimedRecord(at_s, ended), *RECORDS[end + 1 :]])
    row = found.numbers.index(2)
    assert found.trace.iterations[row] == 256, "its policy knew its length"
    assert found.failures.ends_at[row] == 6
    run = what_if(found, [found.policy]).runs[0].run
    assert run.losses is not None
    assert run.losses.killed.tolist() == [number == 2 for number in found.numbers]


def test_jobs_whose_end_is_not_known_are_left_out_and_counted() -> None:
    prepared = next(
        n
        for n, (_, record) in enumerate(RECORDS)
        if isinstance(record, r.RunPrepared) and record.job == 2
    )
    found = workload(RECORDS[:prepared])
    assert found.numbers == (1,)
    assert [each.jobs for each in found.left_out] == [1]
    assert "not known" in found.left_out[0].why


def test_a_short_job_that_made_no_step_is_left_out() -> None:
    def without_steps(each: TimedRecord) -> TimedRecord:
        at_s, record = each
        if isinstance(record, r.RunStepped | r.RunChanged | r.RunEnded) and record.job == 1:
            return TimedRecord(at_s, replace(record, step=0))
        return each

    found = workload(list(map(without_steps, RECORDS)))
    assert 1 not in found.numbers
    assert found.left_out == ((1, "made no step, and ran for less than 60 s"),)


def test_a_journal_without_jobs_says_so() -> None:
    with pytest.raises(UserError, match="nothing to replay"):
        workload(RECORDS[:4])


def test_a_time_after_the_last_job_says_so() -> None:
    later = TimedRecord(RECORDS[-1].at_s + 1000.0, RECORDS[-1].record)
    with pytest.raises(UserError, match="all jobs had ended by then"):
        workload([*RECORDS, later], since_s=later.at_s - 1.0)


def test_too_few_gpus_for_a_job_are_refused() -> None:
    found = workload()
    trace = replace(found.trace, gpus_min=np.minimum(found.trace.gpus_max, 2))
    with pytest.raises(UserError, match="needs at least 2 GPUs"):
        what_if(replace(found, trace=trace), gpus=[1])


def test_gpus_that_left_while_there_was_no_job_are_there_for_jobs_that_last_longer() -> None:
    was = recorded(RECORDS)
    before, until_s = list(was.capacity), was.until_s
    while_idle = [ShareChange(until_s + 1.0, 2), ShareChange(until_s + 2.0, 0)]
    later = [ShareChange(until_s + 1e6, 4)]
    stopped = replace(was, capacity=[*before, *while_idle, *later], until_s=until_s + 2e6)
    assert recorded_workload(stopped).conditions.capacity == workload().conditions.capacity


def test_an_alternative_that_outlives_its_gpus_says_which_jobs_never_end() -> None:
    found = workload()
    last_s = float(np.nanmax(found.finish_s))
    gone = replace(
        found.conditions, capacity=(*found.conditions.capacity, Capacity(last_s + 30.0, 0))
    )
    told = what_if(replace(found, conditions=gone), ["max-min"])
    assert "never end" not in told.sentence
    gone = replace(gone, capacity=(Capacity(0.0, 1), Capacity(last_s, 0)))
    late = what_if(replace(found, conditions=gone), ["max-min"])
    assert "6 jobs would never end under max-min on 1, with 0 GPUs left in the end" in late.sentence


def test_recorded_shares_are_the_events_of_the_recorded_run() -> None:
    found = workload()
    run = recorded_run(found)
    assert run.events is not None
    assert len(run.events.time_s) == len(found.shares) + 2 * found.trace.size
