"""Resizes and suspensions in the default mode: no sample is lost, and scripts may leave early."""

import random
from pathlib import Path

import pytest

from coddl.runtime.errors import TrainingError
from tests.runtime.elastic import Elastic, alone, line_of
from tests.runtime.harness import unwritable

pytest.importorskip("torch")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("loader_workers", [0, 2])
@pytest.mark.parametrize("seed", range(2))
def test_every_sample_is_used_once_at_its_step(
    tmp_path: Path, seed: int, loader_workers: int
) -> None:
    dice = random.Random(seed)
    args = ("--pace-s", "0.2", "--loader-workers", f"{loader_workers}")  # 64 steps: time enough
    with Elastic(tmp_path, "ledger.py", *args, workers=dice.randint(1, 3)) as job:
        for step in sorted(dice.sample(range(2, 20), 5)):
            job.wait_step(step)
            if dice.random() < 0.7:
                job.ask("resize", workers=dice.randint(1, 4))
            else:
                job.ask("suspend")
                job.ask("resume", workers=dice.randint(1, 3))
        printed = job.finish()
    assert line_of(printed, "used") == "used 1 1", job.story()
    assert line_of(printed, "missing") == "missing 0"
    steps = 32 * sum(range(1, 65))  # 32 samples in each of 64 steps, counted from 1
    assert line_of(printed, "steps") == f"steps {steps} [1024, 1024]"
    assert not any(event["is"] == "lost" for event in job.events)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_suspension_that_can_not_be_saved_costs_no_sample(tmp_path: Path, workers: int) -> None:
    with Elastic(tmp_path, "ledger.py", "--pace-s", "0.1", workers=workers) as job:
        job.wait_step(3)
        with unwritable(job.job.folder), pytest.raises(TrainingError, match="keeps training"):
            job.ask("suspend")
        job.wait_kind("regrouped")
        job.ask("suspend")
        assert job.wait_kind("suspended")["durable"]
        job.ask("resume")
        printed = job.finish()
    assert line_of(printed, "used") == "used 1 1", job.story()
    assert line_of(printed, "missing") == "missing 0"


# How a script leaves its loop, and what it must print in the end: passes, then equal weights.
LEAVING = {
    "all break out of each epoch": ("break", 30, False),
    "one worker breaks out of each epoch": ("break-one", 30, False),
    "coddl.stop on all": ("stop", 26, False),
    "coddl.stop on the main worker": ("stop-main", 26, False),
    "a return out of all loops": ("return", 25, True),
    "sys.exit(0)": ("exit", 25, True),
}


@pytest.mark.parametrize(("how", "steps", "is_early"), LEAVING.values(), ids=LEAVING.keys())
def test_a_script_that_leaves_its_loop_ends_it_for_all(
    tmp_path: Path, how: str, steps: int, is_early: bool
) -> None:
    with Elastic(tmp_path, "leaving.py", how, workers=2) as job:
        printed = job.finish()
    told = [(e["step"], e["steps"]) for e in job.events if e["is"] == "left-early"]
    assert told == ([(steps, 50)] if is_early else [])
    assert job.wait_kind("ended")["step"] == steps
    ends = [line.split()[1] for line in printed.splitlines() if line.startswith("end ")]
    assert len(ends) == (0 if how == "exit" else 2)
    assert len(set(ends)) <= 1, "the workers' weights have grown apart"


@pytest.mark.parametrize("how", ["break-one", "break-one-summing"])
def test_a_worker_that_breaks_alone_ends_the_epoch_where_it_left(tmp_path: Path, how: str) -> None:
    def after_epochs(printed: str) -> list[tuple[int, float]]:
        told = [line.split()[1:] for line in printed.splitlines() if line.startswith("epoch ")]
        return sorted((int(epoch), float(weights)) for epoch, weights in told)

    lone = after_epochs(alone("leaving.py", "break"))
    with Elastic(tmp_path, "leaving.py", how, workers=3) as job:
        found = after_epochs(job.finish())
    assert [epoch for epoch, _ in found] == [epoch for epoch, _ in lone for _worker in range(3)]
    want = [weights for _, weights in lone for _worker in range(3)]
    assert [weights for _, weights in found] == pytest.approx(want, abs=1e-5), found


REFUSED = {
    "a batch before the loop": ("early-iter", "was iterated over before coddl.epochs"),
    "a second loop": ("second-loop", "coddl.epochs was called a second time"),
}


@pytest.mark.parametrize(("how", "says"), REFUSED.values(), ids=REFUSED.keys())
def test_a_loop_that_a_joiner_could_not_follow_is_refused(
    tmp_path: Path, how: str, says: str
) -> None:
    with Elastic(tmp_path, "leaving.py", how, "1", workers=2) as job:
        assert says in job.wait_kind("error")["what"]
        assert job.end() == 2


def test_a_worker_that_skips_a_batch_makes_the_others_update(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "skip-one", workers=2) as job:
        printed = job.finish()
    ends = [line.split()[1] for line in printed.splitlines() if line.startswith("end ")]
    assert len(ends) == 2
    assert len(set(ends)) == 1


DIFFERENT = {
    "coddl.mean on one worker only": ("mean-main", "called coddl.mean"),
    "a learning rate from a counter of its own": ("own-rate", "different learning rates"),
    "a split that is not seeded": ("unseeded", "does not match the others"),
    "accumulation by a counter of its own": ("own-counter", "different numbers of updates"),
    "weights that are touched on one worker": ("touched", "weights have grown apart"),
    "a backward that is not exchanged": ("stray", "gradients of one worker"),
}


@pytest.mark.parametrize(("how", "says"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_workers_that_train_different_things_are_told_apart(
    tmp_path: Path, how: str, says: str
) -> None:
    with Elastic(tmp_path, "leaving.py", how, "60", workers=1) as job:
        job.wait_step(7)
        job.ask("resize", workers=2, wait=False)
        told = job.wait(
            lambda e: e["is"] in ("error", "problem") and says in f"{e['what']} {e['because']}"
        )
        assert told["try"]
        if told["is"] == "error":
            assert job.end() == 2


@pytest.mark.parametrize("how", ["steps", "optimizers that take turns", "by hand"])
def test_what_is_no_plain_pass_is_resized_too(tmp_path: Path, how: str) -> None:
    def weights(printed: str) -> list[float]:
        return [float(word) for word in line_of(printed, "weights").split()[1:]]

    lone = weights(alone("pending.py", how))
    with Elastic(tmp_path, "pending.py", how, workers=1) as job:
        for step, size in ((3, 3), (12, 2), (20, 3)):
            job.wait_step(step)
            job.ask("resize", workers=size)
        assert weights(job.finish()) == pytest.approx(lone, abs=1e-5)


def test_what_a_dead_worker_had_not_exchanged_yet_counts_as_lost(tmp_path: Path) -> None:
    with Elastic(tmp_path, "pending.py", "kept back", workers=2) as job:
        job.wait_kind("regrouped")
        job.settle(2)  # with another in its place, nothing more is missing
        job.finish()
    assert [e["samples"] for e in job.events if e["is"] == "lost"] == [4 * 16], job.story()


def test_a_loop_over_range_says_that_it_cannot_be_resized(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "range", workers=1) as job:
        told = job.wait_kind("problem")
        assert "coddl.epochs" in told["try"]
        with pytest.raises(TrainingError, match="can't be resized"):
            job.ask("resize", workers=2)
        job.finish()


def test_slices_that_do_not_fit_send_the_job_back_to_its_former_size(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "memory", workers=3) as job:
        job.wait_step(12)
        job.ask("resize", workers=1, wait=False)
        limit = job.wait_kind("memory")
        assert limit["workers_min"] == 2
        assert limit["because"] == "a slice of 64 samples does not fit in memory"
        shrunk = job.wait(lambda e: e["is"] == "resized" and e["to"] == 1)
        back = job.wait_kind("restarted")
        assert (back["to"], back["step"]) == (3, shrunk["step"]), "a step was lost"
        with pytest.raises(TrainingError, match="does not fit"):
            job.ask("resize", workers=1)
        job.finish()


def test_a_rehearsal_is_silent_and_runs_the_end_of_an_epoch(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "rehearsed", workers=1) as job:
        job.wait_step(3)
        job.ask("resize", workers=2)
        printed = job.finish()
    epochs = [line for line in printed.splitlines() if line.startswith("epoch ")]
    assert len(epochs) == len(set(epochs)), "a joiner's rehearsal was heard"


def test_numbers_are_put_together_after_the_loop_while_others_are_there(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "late-sum", workers=2) as job:
        printed = job.finish()
    assert printed.count("sum 2.0") == 2
    assert line_of(printed, "late") == "late 1.0"


def test_workers_load_what_the_main_worker_has_saved_after_the_loop(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "barrier", "1", workers=3) as job:
        assert job.finish().count("found True") == 3


def test_evaluation_may_take_longer_than_the_watchdog(tmp_path: Path) -> None:
    with Elastic(tmp_path, "leaving.py", "long-evaluation", workers=2, watchdog_s=2.0) as job:
        job.finish()
    assert not any(event["is"] == "problem" for event in job.events), job.story()
