"""An agent as a process, with real training under a server of paper."""

import functools
import hashlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coddl.api.code import pack
from coddl.core.pool.orders import JobOrder, Orders
from coddl.core.pool.records import RunChanged, RunEnded, RunId, RunPrepared, RunStepped
from coddl.core.pool.spec import JobSpec, Launch
from tests.agent.pool import ROOT, TOKEN, Agent, PaperServer, lead, orders, served, wait_until
from tests.runtime.elastic import SCRIPTS, alone

NET = ("--strict", "--epochs", "3", "--pace-s", "0.02")


class Pool(NamedTuple):
    """A server and its agent, shared by the tests of this file; each has jobs of its own."""

    server: PaperServer
    agent: Agent
    jobs: Iterator[int]
    versions: Iterator[int]

    def order(self, *leads: JobOrder, **specs: JobSpec) -> int:
        """Send orders for jobs; give their version."""
        version = next(self.versions)
        by_job = {each.job: specs["spec"] for each in leads}
        self.server.order(orders(version, leads, by_job))
        return version

    def clear(self) -> None:
        """Order nothing, and wait until nothing is there."""
        self.server.held(self.order(), {})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with served() as server, Agent(tmp_path_factory.mktemp("pool"), server.url) as agent:
        yield Pool(server, agent, itertools.count(1), itertools.count(1))


@pytest.fixture
def pool(shared: Pool) -> Iterator[Pool]:
    shared.server.hello()
    yield shared
    shared.clear()


def script(name: str, *args: str, **fields: Any) -> JobSpec:
    launch = Launch(argv=(str(SCRIPTS / name), *args), **fields)
    return JobSpec(name="job", launch=launch, gpus_max=2)


@functools.cache
def alone_hash() -> str:
    """Give what the training prints when it runs by itself."""
    return f"stdout: {alone('net.py', *NET[:3]).splitlines()[0]}"


def written(folder: Path, text: str, **fields: Any) -> JobSpec:
    path = folder / "script.py"
    path.write_text(text)
    return JobSpec(name="job", launch=Launch(argv=(str(path),), **fields), gpus_max=2)


def test_an_agent_presents_itself_and_keeps_its_secrets(pool: Pool) -> None:
    hello = pool.server.hello()
    assert [device.kind for device in hello.devices] == ["cpu", "cpu"]
    assert hello.host == "127.0.0.1"  # by which it reaches the server
    wait_until(lambda: '"interpreter_warm"' in pool.agent.printed.read_text(), "a warm interpreter")
    printed = pool.agent.printed.read_text()
    assert "jobs_run_as" in printed
    assert hello.peer_token not in printed
    assert TOKEN not in printed


def test_a_job_is_led_and_resized_and_trains_the_same(pool: Pool) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", *NET)
    pool.order(lead(job, [0]), spec=spec)
    prepared = server.fact(RunPrepared, job)
    assert (prepared.virtual_nodes, prepared.workers_max) == (8, 8)
    weights = (8 * 3 * 3 * 3 + 8) + (8 + 8) + (512 * 10 + 10)  # convolution, norm, linear
    assert (prepared.gradient_bytes, prepared.largest_tensor_bytes) == (4 * weights, 4 * 512 * 10)
    assert server.fact(RunStepped, job).attempt == 1
    version = pool.order(lead(job, [0, 1]), spec=spec)
    grown = server.fact(RunChanged, job, kind="resized", gpus_before=1)
    assert set(grown.slots) == {0, 1}
    server.held(version, {0: RunId(job, 1), 1: RunId(job, 1)})
    version = pool.order(lead(job, [1]), spec=spec)
    assert server.fact(RunChanged, job, kind="resized", gpus_before=2).slots == (1,)
    server.held(version, {1: RunId(job, 1)})
    ended = server.fact(RunEnded, job)
    assert (ended.outcome, ended.exit_code, ended.step) == ("succeeded", 0, 48)
    printed = [line for line in server.lines(job) if line.startswith("stdout: hash")]
    assert printed == [alone_hash()]  # it came before the end
    assert server.progress(job)[-1].progressed.gpus == 1


def test_a_job_that_leaves_goes_on_where_it_was(pool: Pool) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", *NET)
    pool.order(lead(job, [0, 1]), spec=spec)
    server.wait_step(5, job)
    version = pool.order(lead(job, [0, 1], stop="retire"), spec=spec)
    ended = server.fact(RunEnded, job)
    assert ended.outcome == "retired"
    assert ended.step >= 5
    server.held(version, {})
    pool.order(lead(job, [1], attempt=2), spec=spec)
    server.line(f"coddl: resuming from step {ended.step} in checkpoint", job)
    assert server.fact(RunEnded, job, attempt=2).outcome == "succeeded"
    assert server.line("stdout: hash", job) == alone_hash()


def test_a_job_can_be_cancelled(pool: Pool) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", "--epochs", "1000")
    pool.order(lead(job, [0, 1]), spec=spec)
    prepared = server.fact(RunPrepared, job)
    told = (prepared.virtual_nodes, prepared.workers_max, prepared.global_batch, prepared.steps)
    assert told == (None, 64, 64, 16_000)
    server.fact(RunStepped, job)
    version = pool.order(lead(job, [0, 1], stop="cancel"), spec=spec)
    assert server.fact(RunEnded, job).outcome == "cancelled"
    server.held(version, {})
    wait_until(lambda: not (pool.agent.folder / "jobs" / str(job)).exists(), "its folder's end")


def test_a_job_called_off_before_it_began_is_over(pool: Pool) -> None:
    job = next(pool.jobs)
    pool.order(lead(job, [0], stop="cancel"), spec=script("net.py"))
    assert pool.server.fact(RunEnded, job) == RunEnded(job, 1, "cancelled")


def test_a_worker_starts_only_where_the_table_gives_its_job_a_seat(pool: Pool) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", "--epochs", "1000")
    pool.order(lead(job, [0]), spec=spec)
    server.wait_step(1, job)
    wanted, version = lead(job, [0, 1]), next(pool.versions)
    server.order(Orders(version, {0: (RunId(job, 1),)}, (wanted,), {job: spec}))
    server.held(version, {0: RunId(job, 1)})
    server.wait_step(server.progress(job)[-1].progressed.step + 20, job)
    server.held(version, {0: RunId(job, 1)})  # still
    version = pool.order(wanted, spec=spec)
    server.fact(RunChanged, job, kind="resized")
    server.held(version, {0: RunId(job, 1), 1: RunId(job, 1)})
    pool.order(lead(job, [0, 1], stop="cancel"), spec=spec)
    server.fact(RunEnded, job, outcome="cancelled")


TRAIN = """
import os, torch, coddl
model = torch.nn.Linear(2, 1)
data = [(torch.zeros(2), torch.zeros(1))] * 8
model, optimizer, batches = coddl.prepare(
    model, torch.optim.SGD(model.parameters(), 0.1), data, global_batch=8)
for epoch in coddl.epochs(1):
    for x, y in batches:
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
KILLED = "os.kill(os.getpid(), 9)\n"

FAULTS = {
    "its script fails": ("raise SystemExit('no data')", "failed", 1, "failed"),
    "its script crashes": ("import os; os.abort()", "failed", 1, "has no worker left"),
    "it asks to be run again": ("raise SystemExit(75)", "requeue", 75, ""),
    "it ends without having trained": ("print('done')", "succeeded", 0, ""),
    "it is killed after its last step": (TRAIN + KILLED, "lost", None, "did not finish"),
}


@pytest.mark.parametrize("case", FAULTS.values(), ids=FAULTS.keys())
def test_how_a_script_ends(
    case: tuple[str, str, int | None, str], pool: Pool, tmp_path: Path
) -> None:
    text, outcome, code, what = case
    job = next(pool.jobs)
    pool.order(lead(job, [0]), spec=written(tmp_path, text))
    ended = pool.server.fact(RunEnded, job)
    assert (ended.outcome, ended.exit_code) == (outcome, code), pool.server.story(job)
    assert what in (ended.trouble.what if ended.trouble else "")


def test_a_script_that_is_not_there_is_the_jobs_own_fault(pool: Pool) -> None:
    job = next(pool.jobs)
    spec = JobSpec(name="job", launch=Launch(argv=("nowhere.py",)))
    pool.order(lead(job, [0]), spec=spec)
    ended = pool.server.fact(RunEnded, job)
    assert ended.outcome == "failed"
    assert ended.trouble is not None
    assert ended.trouble.what == "nowhere.py can't be run"


def test_an_interpreter_that_is_killed_each_time_is_not_the_jobs_fault(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    job = next(pool.jobs)
    spec = written(tmp_path, "", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"})
    pool.order(lead(job, [0]), spec=spec)
    ended = pool.server.fact(RunEnded, job)
    assert (ended.outcome, ended.exit_code) == ("lost", None)
    assert ended.trouble is not None
    assert "can't run workers" in ended.trouble.what


def test_a_python_without_torch_is_the_jobs_own_fault(pool: Pool, tmp_path: Path) -> None:
    job = next(pool.jobs)
    spec = written(tmp_path, "pass", python="/bin/false")
    pool.order(lead(job, [0]), spec=spec)
    ended = pool.server.fact(RunEnded, job)
    assert (ended.outcome, ended.exit_code) == ("failed", 2)
    assert ended.trouble is not None
    assert "/bin/false can't run workers" in ended.trouble.what


def test_a_job_runs_the_code_that_was_submitted(pool: Pool, tmp_path: Path) -> None:
    job = next(pool.jobs)
    folder = tmp_path / "code"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "train.py").write_text(
        "import os, helper, sys; print('in', os.path.basename(os.getcwd()), helper.word)\n"
        "open('model.pt', 'w').write('weights')\n"
        "print('env', os.environ['OMP_NUM_THREADS'], os.environ['A'], 'CODDL_TOKEN' in os.environ)"
    )
    (folder / "sub" / "helper.py").write_text("word = 'hello'")
    archive = pack(folder, tmp_path / "code.tar.gz")
    pool.server.archives[archive.hash] = archive.path.read_bytes()
    launch = Launch(argv=("train.py",), code=archive.hash, folder="sub", env={"A": "b"})
    pool.order(lead(job, [0]), spec=JobSpec(name="job", launch=launch))
    assert pool.server.fact(RunEnded, job).outcome == "succeeded"
    assert pool.server.line("stdout: in", job) == "stdout: in sub hello"
    assert pool.server.line("stdout: env", job) == "stdout: env 1 b False"
    home = pool.agent.folder / "jobs" / str(job) / "folder" / "sub"
    wait_until(lambda: not (home / "train.py").exists(), "the end of the code's copy")
    assert (home / "model.pt").read_text() == "weights"


BAD_CODE = {
    "no archive at all": (b"hello", "the submitted code can't be used"),
    "an archive that is another": (None, "the submitted code can't be used"),
}


@pytest.mark.parametrize(("data", "what"), BAD_CODE.values(), ids=BAD_CODE.keys())
def test_code_that_means_ill_is_refused(data: bytes | None, what: str, pool: Pool) -> None:
    job = next(pool.jobs)
    code = hashlib.sha256(data or b"something else").hexdigest()
    pool.server.archives[code] = data or b"this"
    launch = Launch(argv=("train.py",), code=code)
    pool.order(lead(job, [0]), spec=JobSpec(name="job", launch=launch))
    ended = pool.server.fact(RunEnded, job)
    assert ended.outcome == "failed"
    assert ended.trouble is not None
    assert ended.trouble.what == what


def test_a_precheck_runs_alone_and_then_the_job(pool: Pool, tmp_path: Path) -> None:
    job = next(pool.jobs)
    precheck = (sys.executable, "-c", "print('checked')")
    spec = written(tmp_path, "print('trained')", precheck=precheck)
    version = pool.order(lead(job, [0], precheck=True), spec=spec)
    assert pool.server.fact(RunEnded, job) == RunEnded(job, 1, "prechecked", exit_code=0)
    pool.server.line("stdout: checked", job)
    pool.server.held(version, {})
    pool.order(lead(job, [0], attempt=2), spec=spec)
    assert pool.server.fact(RunEnded, job, attempt=2).outcome == "succeeded"


def test_a_job_may_sit_on_several_nodes(pool: Pool, tmp_path: Path) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", *NET)
    with Agent(tmp_path, server.url, name="n1", jobs_dir=str(pool.agent.folder / "jobs")):
        server.hello("n1")
        seats = {10: RunId(job, 1)}
        server.order(Orders(1, {10: (RunId(job, 1),)}, (), {job: spec}), "n1")
        first = orders(next(pool.versions), [lead(job, [0, 10])], {job: spec})
        server.order(first, nodes=["n1"])
        started = server.fact(RunChanged, job, kind="started")
        assert set(started.slots) == {0, 10}
        wait_until(
            lambda: any(m.slots == seats for m in server.holdings()), "a worker on the other node"
        )
        assert server.fact(RunEnded, job).outcome == "succeeded"
        assert server.line("stdout: hash", job) == alone_hash()


def test_workers_of_a_killed_agents_job_are_adopted_by_another(pool: Pool, tmp_path: Path) -> None:
    server, job = pool.server, next(pool.jobs)
    spec = script("net.py", *NET)
    jobs = str(pool.agent.folder / "jobs")
    with (
        Agent(tmp_path, server.url, name="n1", jobs_dir=jobs),
        Agent(tmp_path, server.url, name="n2", jobs_dir=jobs) as lost,
    ):
        server.hello("n1")
        server.hello("n2")
        server.order(Orders(1, {10: (RunId(job, 1),)}, (), {job: spec}), "n1")
        told = Orders(1, {20: (RunId(job, 1),)}, (lead(job, [20, 10]),), {job: spec})
        server.order(told, "n2", nodes=["n1"])
        server.wait_step(5, job)
        lost.process.kill()
        lost.end()
        led = lead(job, [10], attempt=2, adopt=True)
        server.order(Orders(2, {10: (RunId(job, 2),)}, (led,), {job: spec}), "n1")
        regrouped = server.fact(RunChanged, job, attempt=2)
        assert (regrouped.kind, regrouped.slots) == ("regrouped", (10,))
        assert server.fact(RunEnded, job, attempt=2).outcome == "succeeded"
        assert server.line("stdout: hash", job) == alone_hash()
        assert not [line for line in server.lines(job) if "goes on from" in line]
