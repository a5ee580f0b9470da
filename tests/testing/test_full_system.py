"""Whole pools in virtual time: seeds hold, mistakes are found, and a seed is always the same."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import msgspec
import pytest

from coddl.testing.full_system.__main__ import main
from coddl.testing.full_system.plan import WEIGHTS, SimulationPlan, draw
from coddl.testing.full_system.report import PHASES, SwarmReport
from coddl.testing.full_system.shrink import shrink
from coddl.testing.full_system.simulation import Outcome, run
from tests.testing.mutants import MUTANTS

REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.json"))
BLOCK = 10  # seeds of a test
SEEDS = 60  # `make test-swarm` runs more
FOUND_WITHIN = 40  # seeds
# The first seed that finds each planted mistake; where plans are drawn otherwise, look again.
FOUND_AT = {
    "effects come before the journal": 0,
    "a request's key is forgotten": 7,
    "records after a snapshot are not read": 0,
    "attempts are not compared": 7,
    "versions of orders are not compared": 2,
    "a lease is over too early": 4,
    "a slot is freed too early": 0,
    "a lease is counted by the wrong clock": 4,
    "a stopped agent has no fence": 4,
    "a state that was not saved counts as saved": 6,
    "a group is committed to when its first worker is ready": 0,
    "a new lead counts generations anew": 8,
    "an image that was not saved counts as saved": 6,
    "a slot counts as free before its worker is gone": 13,
}


@cache
def outcome_of(seed: int) -> Outcome:
    """Run a seed, once in this process."""
    return run(draw(seed))


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_every_invariant_holds(first: int) -> None:
    for seed in range(first, first + BLOCK):
        outcome = outcome_of(seed)
        assert outcome.broken is None, f"seed {seed}: {outcome.broken}\nmake sim-one SEED={seed}"


@pytest.mark.parametrize("path", REGRESSIONS, ids=lambda path: path.stem)
def test_what_was_mended_stays_so(path: Path) -> None:
    outcome = run(msgspec.json.decode(path.read_bytes(), type=SimulationPlan))
    assert outcome.broken is None, outcome.story


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_mistake_is_found(name: str) -> None:
    first = FOUND_AT[name]
    seeds = [first, *(seed for seed in range(FOUND_WITHIN) if seed != first)]
    assert any(run(draw(seed), MUTANTS[name]).broken is not None for seed in seeds)


def test_a_seed_has_one_story_in_every_process() -> None:
    words = [sys.executable, "-m", "coddl.testing.full_system", "--seeds", "3", "--story"]
    told = []
    for hashes in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        told.append(done.stdout.rpartition("; took")[0])
    assert told[0] == told[1]
    assert outcome_of(3).story in told[0]


def test_plans_are_large_enough_to_meet_trouble() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert median(len(plan.jobs) for plan in plans) >= 20
    assert median(len(plan.faults) for plan in plans) >= 10
    assert {fault.kind for plan in plans for fault in plan.faults} == set(WEIGHTS)
    for plan in plans:
        assert all(each.at_s + each.for_s <= plan.trouble_s + 1e-6 for each in plan.faults)
        assert msgspec.json.decode(msgspec.json.encode(plan), type=SimulationPlan) == plan


def test_faults_meet_jobs_in_every_phase_and_the_server_in_each_state() -> None:
    report = SwarmReport()
    for seed in range(20):
        report.add(outcome_of(seed))
    assert {phase for _, phase in report.met} == set(PHASES)
    assert all(phase in report.coverage for phase in PHASES)


def test_a_plan_shrinks_to_what_its_failure_needs() -> None:
    plan = draw(1)
    culprit, node = plan.faults[2], plan.nodes[-1].name

    def fails(smaller: SimulationPlan) -> bool:
        is_there = any(each.name == node for each in smaller.nodes)
        return is_there and culprit in smaller.faults and len(smaller.jobs) > 2

    small = shrink(plan, fails)
    assert small.faults == (culprit,)
    assert len(small.jobs) == 3
    assert not small.acts
    assert {each.name for each in small.nodes} == {node, culprit.node, culprit.other} - {""}


def test_a_failure_is_told_with_the_way_to_replay_it() -> None:
    report = SwarmReport()
    report.add(run(draw(0), MUTANTS["a slot is freed too early"]))
    (failure,) = report.failures
    assert "replay: make sim-one SEED=0" in f"{failure}"
    assert "1 failed" in report.summary


def test_the_command_gives_json_and_refuses_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(replace(draw(3), jobs=(), acts=(), faults=())))
    assert main(["--plan", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failed"], found["jobs"]) == (1, [], 0)
    for words in (["--seeds", "5..2"], ["--seeds", "x"], ["--jobs", "0"]):
        with pytest.raises(SystemExit) as refusal:
            main(words)
        assert refusal.value.code == 2
