"""Whoever is killed, and whenever: every accepted job finishes, with the bits of a lone run."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from coddl.core.pool import records as r
from tests.e2e.conftest import Alone
from tests.e2e.deciding import folded
from tests.e2e.pool import Pool
from tests.e2e.training import Training

pytestmark = pytest.mark.slow

STEPS = 240
SLOW_S = 0.2  # per pass: a job does not end before it was struck twice

Strike = Callable[[Pool, Training], None]


def kill_worker(pool: Pool, training: Training) -> None:
    os.kill(pool.observer.sitters(training.job)[-1].pid, signal.SIGKILL)


def kill_lead(pool: Pool, training: Training) -> None:
    """Kill the agent that leads; it comes back when its lease has run out."""
    node, since = training.lead, pool.last_seq()
    pool.kill(node)
    pool.wait_record(since, f"loss of {node}", lambda each: isinstance(each, r.NodeLost))
    pool.start_agent(node)


def kill_other(pool: Pool, training: Training) -> None:
    """Kill an agent that has workers; it comes back at once, as another process."""
    node = training.others[0]
    pool.kill(node)
    pool.start_agent(node)


def kill_server(pool: Pool, training: Training) -> None:
    """Kill the server; training goes on without it."""
    pool.kill("server")
    training.go_on()
    pool.start_server()


def kill_server_and_lead(pool: Pool, training: Training) -> None:
    node = training.lead
    pool.kill("server", node)
    pool.start_server()
    pool.start_agent(node)


# Who is killed; for how long agents go on without the server; whether the job is led anew.
STRIKES = {
    "a worker": (kill_worker, 60.0, False),
    "its lead": (kill_lead, 6.0, True),
    "another agent": (kill_other, 60.0, False),
    "the server": (kill_server, 60.0, False),
    "the server and its lead": (kill_server_and_lead, 60.0, True),
}
# `make test` has a death of the most processes, and of the fewest.
MARKS = dict.fromkeys(("its lead", "another agent", "the server"), pytest.mark.matrix)


def resize(pool: Pool, training: Training) -> None:
    """Ask for another size, and return when its agents are about to be told."""
    since = pool.last_seq()
    gpus = 3 if training.view["gpus"] != 3 else 4
    bounds = {"gpus_min": gpus, "gpus_max": gpus}
    pool.ask(lambda client: client.patch(f"/jobs/{training.job}", bounds))

    def is_ours(record: r.Record) -> bool:
        return isinstance(record, r.Aimed) and record.job == training.job

    pool.wait_record(since, "a new target", is_ours)


@pytest.mark.parametrize(
    ("strike", "lease_s", "is_led_anew"),
    [pytest.param(*each, id=name, marks=MARKS.get(name, ())) for name, each in STRIKES.items()],
)
def test_jobs_outlive_the_death_of(
    strike: Strike, lease_s: float, is_led_anew: bool, tmp_path: Path, alone: Alone
) -> None:
    with Pool(tmp_path, lease_s=lease_s) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="3..6")
        beside = Training(pool, "beside", steps=STEPS, pace_s=SLOW_S, gpus="1..2")
        for training in (strict, beside):
            training.go_on()
        assert strict.others, "it spans nodes"

        strike(pool, strict)  # while it trains
        strict.go_on()

        resize(pool, strict)
        strike(pool, strict)  # in the middle of a resize
        strict.go_on()

        beside.finish()
        view = strict.finish()
        assert strict.hash == alone(STEPS)
        assert (view["attempt"] > 1) == is_led_anew, "a job is led anew if its lead is gone"
        folded(pool.records())


def test_an_agent_that_is_stopped_holds_nothing_until_its_lease_ends(
    tmp_path: Path, alone: Alone
) -> None:
    with Pool(tmp_path, lease_s=600.0) as pool:
        strict = Training(pool, "strict", steps=STEPS, pace_s=SLOW_S, args="--strict", gpus="4")
        strict.go_on()
        node, since = strict.others[0], pool.last_seq()
        pool.stop_agent(node)
        pool.wait_record(since, f"loss of {node}", lambda each: isinstance(each, r.NodeLost))
        pool.wait_size(strict.job, 4)
        assert node not in strict.view["nodes"]
        strict.go_on()
        strict.finish()
        assert strict.hash == alone(STEPS)
        folded(pool.records())
