"""A lead of an elastic job, before it has begun: what it makes of its supervisor's words."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coddl.agent.job_runner import ElasticRunner, JobRun, job_of
from coddl.core.pool.memory_limits import MemoryLimit
from coddl.core.pool.spec import JobSpec, Launch
from coddl.runtime.supervisor.memory_fit import RememberedLimit
from coddl.runtime.supervisor.slots import JobEnvironment
from tests.agent.test_command_runner import Listener


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[ElasticRunner]:
    environment = JobEnvironment(
        python=sys.executable, cwd=tmp_path, env={}, folder=tmp_path / "checkpoints"
    )
    spec = JobSpec(name="job", launch=Launch(argv=("train.py",)))
    lead = ElasticRunner(
        JobRun(job=1, attempt=1, spec=spec, node="n", environment=environment), Listener()
    )
    yield lead
    lead._supervisor._loop.close()


def test_an_image_that_only_goes_from_worker_to_worker_is_not_waited_for(
    lead: ElasticRunner,
) -> None:
    lead._hear({"is": "image", "path": "somewhere", "step": 3})
    assert lead.force(at_all_costs=False)


def test_a_script_counts_as_quiet_from_when_a_process_runs_it(lead: ElasticRunner) -> None:
    lead._hear({"is": "starting", "worker": 0, "slot": 0})
    assert not lead._has_process  # the interpreter may still be getting warm
    lead._hear({"is": "forked", "worker": 0, "pid": 99})
    assert lead._has_process


def test_turns_are_told_to_the_agent_and_to_nobody_else(lead: ElasticRunner) -> None:
    turns = [{"is": "turn ended", "slot": 0}, {"is": "turn begun", "slot": 0, "seconds": 0.1}]
    for event in turns:
        lead._hear(event)
    listener = lead._listener
    assert isinstance(listener, Listener)
    assert listener.turns == turns
    assert listener.facts.empty()
    assert listener.lines.empty()


def test_a_run_knows_what_other_jobs_have_found(lead: ElasticRunner) -> None:
    run = replace(lead.run, limits=(MemoryLimit(7, "h200", 64, 3),))
    assert job_of(run).limits == (RememberedLimit(7, 64, 3),)


def test_a_run_is_over_however_its_thread_ends(
    lead: ElasticRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exits() -> int:
        raise SystemExit(1)  # which threads swallow

    (lead.run.environment.cwd / "train.py").write_text("")
    monkeypatch.setattr(lead._supervisor, "run", exits)
    with pytest.raises(SystemExit):
        lead._work()
    assert isinstance(lead._listener, Listener)
    assert lead._listener.is_over


@pytest.mark.parametrize("prepares", [True, False])
def test_only_a_script_that_never_prepares_counts_as_running_without_a_step(
    lead: ElasticRunner, prepares: bool
) -> None:
    script = lead.run.environment.cwd / "train.py"
    script.write_text("import coddl\ncoddl.prepare(None)\n" if prepares else "print(1)\n")
    lead._tell_quiet()
    assert isinstance(lead._listener, Listener)
    assert lead._listener.facts.empty() == prepares
