"""Real processes, resized, suspended and killed; the training must not notice."""

import random
from pathlib import Path

import pytest

from tests.runtime.elastic import Elastic, alone, line_of

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

STRICT = ("--strict",)


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return line_of(alone("net.py", *STRICT), "hash")


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_strict_training_has_the_same_bits_at_every_size(
    tmp_path: Path, workers: int, undisturbed: str
) -> None:
    with Elastic(tmp_path, "net.py", *STRICT, workers=workers, cold=True) as job:
        assert line_of(job.finish(), "hash") == undisturbed


def test_strict_training_has_the_same_bits_through_resizes_and_a_kill(
    tmp_path: Path, undisturbed: str
) -> None:
    args = (*STRICT, "--pace-s", "0.06")
    with Elastic(tmp_path, "net.py", *args, workers=1) as job:
        job.wait_step(2)
        for size in (4, 2):
            job.ask("resize", workers=size)
        job.kill(min(job.pids()))  # the main worker
        job.wait_kind("regrouped")
        for size in (3, 1):
            job.ask("resize", workers=size)
        assert line_of(job.finish(), "hash") == undisturbed
        assert {4, 2, 3, 1} <= set(job.sizes())


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> str:
    with Elastic(tmp_path_factory.mktemp("account"), "ledger.py", *STRICT, "--pace-s", "0") as job:
        printed = job.finish()
    assert line_of(printed, "used") == "used 1 1"
    return line_of(printed, "ledger")


@pytest.mark.parametrize("seed", range(4))
def test_every_sample_is_used_once_at_its_step_whatever_happens(
    tmp_path: Path, seed: int, account: str
) -> None:
    dice = random.Random(seed)
    with Elastic(
        tmp_path, "ledger.py", *STRICT, "--pace-s", "0.05", workers=dice.randint(1, 4)
    ) as job:
        for step in sorted(dice.sample(range(2, 24), 5)):
            job.wait_step(step)
            what = dice.choice(["resize", "resize", "suspend", "kill", "kill all"])
            if what == "resize":
                job.ask("resize", workers=dice.randint(1, 4))
            elif what == "suspend":
                job.ask("suspend")
                job.ask("resume", workers=dice.randint(1, 4))
            else:
                pids = job.pids()
                victims = list(pids) if what == "kill all" else [dice.choice(list(pids))]
                job.kill(*victims)
        assert line_of(job.finish(), "ledger") == account, job.story()
