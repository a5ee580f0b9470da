"""Slurm as an engine: what its commands print, what follows, and the contract in a real cluster."""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from coddl.core.errors import UserError
from coddl.engines.engine import AgentLaunch, Engine, EngineNode, EngineUnavailable
from coddl.engines.slurm import pilot
from coddl.engines.slurm.commands import (
    SlurmCommands,
    SlurmJob,
    SlurmNode,
    clock_time,
    duration,
    seconds_of,
)
from coddl.engines.slurm.engine import SlurmEngine
from coddl.engines.slurm.options import NO_OPTIONS, SlurmOptions
from coddl.engines.slurm.pilot import PilotOrder, agent_env, gpu_ids, read_order, write_order
from coddl.testing.engines import EngineContract
from tests.engines.slurm_cluster import SlurmCluster, why_not

LAUNCH = AgentLaunch(pool="p1", server="http://127.0.0.1:9", token="secret", slots=2)
NOW_S = 1_000_000.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400.0),
        ("1:30", 90.0),
        ("8:00:00", 28800.0),
        ("2-12", 216000.0),
        ("1-02:03", 93780.0),
        ("1-02:03:04", 93784.0),
        ("UNLIMITED", None),
        ("NOT_SET", None),
        ("", None),
    ],
)
def test_limits_are_read_as_slurm_writes_them(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


def test_times_and_settings_are_read() -> None:
    assert clock_time("1970-01-02T00:00:01") == 86401.0
    assert clock_time("N/A") is None
    assert clock_time("Unknown") is None
    assert seconds_of("30 sec", 1.0) == 30.0
    assert seconds_of("", 1.0) == 1.0


def printing(folder: Path, **outputs: str) -> SlurmCommands:
    """Give commands that print what they are told to; a first line `! N` is the exit code."""
    for name, text in outputs.items():
        code, _, rest = text.partition("\n") if text.startswith("! ") else ("! 0", "", text)
        where = ">&2" if code != "! 0" else ""
        (folder / f"{name}.txt").write_text(rest)
        script = f'#!/bin/sh\necho {name} "$@" >> {folder}/asked\n'
        script += f"cat {folder}/{name}.txt {where}\nexit {code[2:]}\n"
        path = folder / name
        path.write_text(script)
        path.chmod(0o755)
    return SlurmCommands({"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})


def test_jobs_are_read_from_an_explicit_format(tmp_path: Path) -> None:
    lines = (
        "12|RUNNING|2026-11-17T22:14:48|8:00:00|2026-11-17T14:14:48|gpu-3|None\n"
        "13|PENDING|N/A|8:00:00|N/A||Resources\n"
    )
    commands = printing(tmp_path, squeue=lines)
    up, waits = commands.jobs("coddl-p1")
    assert (up.id, up.state, up.host, up.reason) == (12, "RUNNING", "gpu-3", "")
    assert up.limit_s == 28800.0
    assert up.ends_at_s is not None
    assert up.starts_at_s is not None
    assert up.ends_at_s - up.starts_at_s == 28800.0
    assert (waits.state, waits.ends_at_s, waits.reason) == ("PENDING", None, "Resources")
    asked = (tmp_path / "asked").read_text()
    assert "--name=coddl-p1" in asked
    assert "--format=%i|" in asked


def test_gpus_of_machines_are_counted_with_and_without_a_type(tmp_path: Path) -> None:
    lines = (
        "n1|mixed|64|gpu:a100:4(S:0-1)|none\n"
        "n1|mixed|64|gpu:a100:4(S:0-1)|none\n"
        "n2|drained*|64|gpu:2,gpu:v100:2,nvme:1|bad fan\n"
        "n3|idle|64|(null)|none\n"
    )
    n1, n2, n3 = printing(tmp_path, sinfo=lines).nodes(partition="gpu")
    assert (n1.gpus, n1.is_draining, n1.reason) == (4, False, "")
    assert (n2.gpus, n2.is_draining, n2.reason) == (4, True, "bad fan")
    assert n3.gpus == 0


def test_a_controller_that_does_not_answer_is_an_engine_that_does_not(tmp_path: Path) -> None:
    commands = printing(tmp_path, squeue="! 1\nslurm_load_jobs error: Unable to contact slurm\n")
    with pytest.raises(EngineUnavailable, match="Unable to contact slurm"):
        commands.jobs("coddl-p1")


def test_a_job_that_is_refused_says_why(tmp_path: Path) -> None:
    commands = printing(tmp_path, sbatch="! 1\nsbatch: error: QOSMaxSubmitJobPerUserLimit\n")
    with pytest.raises(EngineUnavailable, match="QOSMaxSubmitJobPerUserLimit"):
        commands.submit(["job.sh"])


def test_slurm_must_be_installed() -> None:
    with pytest.raises(UserError, match="squeue is not found"):
        SlurmCommands({"PATH": "/nowhere"}).jobs("coddl-p1")


@pytest.mark.parametrize("said", ["77\n", "77;other\n", "Welcome to cluster 5!\n77\n"])
def test_the_number_of_a_job_is_read_whatever_a_site_adds(tmp_path: Path, said: str) -> None:
    assert printing(tmp_path, sbatch=said).submit(["job.sh"]) == 77


def test_a_job_without_a_number_is_none(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match="printed no job number: 'queued'"):
        printing(tmp_path, sbatch="queued\n").submit(["job.sh"])


class FakeSlurm(SlurmCommands):
    """A cluster of a few jobs that a test describes."""

    def __init__(self, machines: Sequence[SlurmNode], refuses: str) -> None:
        super().__init__({})
        self.found: list[SlurmJob] = []
        self.machines = machines
        self.refuses = refuses
        self.done: list[tuple[object, ...]] = []

    def jobs(self, name: str) -> list[SlurmJob]:
        assert name == "coddl-p1"
        return self.found

    def nodes(self, *, partition: str = "", names: Sequence[str] = ()) -> list[SlurmNode]:
        del partition
        return [node for node in self.machines if node.name in names or not names]

    def submit(self, words: Sequence[str]) -> int:
        self.done.append(("submit", *words))
        return 99

    def try_submit(self, words: Sequence[str]) -> str:
        del words
        return self.refuses

    def signal(self, job: int, name: str) -> None:
        self.done.append(("signal", job, name))

    def cancel(self, job: int, *, only_pending: bool = False) -> None:
        self.done.append(("cancel", job, only_pending))

    def settings(self) -> dict[str, str]:
        return {"KillWait": "20 sec"}


class Known:
    """An engine, and the cluster that it asks."""

    def __init__(
        self,
        folder: Path,
        options: SlurmOptions = NO_OPTIONS,
        *,
        machines: Sequence[SlurmNode] = (),
        refuses: str = "",
    ) -> None:
        self.now_s = NOW_S
        self.slurm = FakeSlurm(machines, refuses)
        self.engine = SlurmEngine(
            LAUNCH,
            options,
            folder,
            gpus_per_node=2,
            commands=self.slurm,
            wall_s=lambda: self.now_s,
        )

    def look(self, *jobs: SlurmJob) -> tuple[EngineNode, ...]:
        """Look again, after the cluster has come to have these jobs."""
        self.slurm.found = list(jobs)
        self.now_s += 5.0
        return self.engine.look().nodes


def running(left_s: float, limit_s: float = 28800.0, host: str = "n1") -> SlurmJob:
    ends_at_s = NOW_S + 5.0 + left_s
    return SlurmJob(7, "RUNNING", ends_at_s, limit_s, ends_at_s - limit_s, host)


def test_a_pilot_job_expires_in_time_and_leaves_shortly_before_its_limit(tmp_path: Path) -> None:
    known = Known(tmp_path)
    assert known.look(running(7200.0)) == (EngineNode("slurm-7", "up"),)
    (node,) = Known(tmp_path).look(running(1700.0))
    assert (node.expires_at_s, node.leaves_at_s) == (NOW_S + 1705.0, None)
    (node,) = Known(tmp_path).look(running(110.0))
    assert (node.expires_at_s, node.leaves_at_s) == (None, NOW_S + 110.0)
    assert node.because == "its Slurm job reaches its time limit"


def test_a_preemption_with_a_grace_time_is_seen_by_an_earlier_end(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(running(20000.0))
    (node,) = known.look(SlurmJob(7, "RUNNING", known.now_s + 45.0, 28800.0, NOW_S, "n1"))
    assert node.leaves_at_s == pytest.approx(known.now_s - 5.0 + 45.0 - 5.0)
    assert node.because == "Slurm preempts its job"


def test_a_short_limit_leaves_time_to_work(tmp_path: Path) -> None:
    (node,) = Known(tmp_path).look(running(70.0, limit_s=120.0))
    assert node == EngineNode("slurm-7", "up")
    (node,) = Known(tmp_path).look(running(29.0, limit_s=120.0))
    assert node.expires_at_s is not None
    (node,) = Known(tmp_path).look(running(19.0, limit_s=120.0))
    assert node.leaves_at_s is not None


def test_a_machine_that_is_drained_is_left(tmp_path: Path) -> None:
    known = Known(tmp_path, machines=[SlurmNode("n1", "draining", 8, 2, "bad fan")])
    (node,) = known.look(running(7200.0))
    assert node.leaves_at_s == known.now_s + 600.0
    assert node.because == "Slurm drains its machine: bad fan"
    (node,) = known.look(running(7200.0))
    assert node.leaves_at_s == known.now_s - 5.0 + 600.0, "as it was when it was first seen"


def test_a_job_that_waits_says_for_what(tmp_path: Path) -> None:
    (node,) = Known(tmp_path).look(SlurmJob(7, "PENDING", reason="Priority"))
    assert node.state == "starting"
    assert node.because == "Slurm job 7 waits in the queue (Priority)"


def test_a_job_that_waits_is_withdrawn_even_if_it_starts_just_then(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(SlurmJob(7, "PENDING", reason="Priority"))
    known.engine.release("slurm-7", 30.0)
    assert known.slurm.done == [("cancel", 7, True)]
    assert known.look(running(7200.0)) == (EngineNode("slurm-7", "releasing"),)
    assert known.slurm.done[-1] == ("signal", 7, "USR2")


def test_a_node_that_is_released_is_asked_to_end_and_cancelled_if_it_does_not(
    tmp_path: Path,
) -> None:
    known = Known(tmp_path)
    known.look(running(7200.0))
    known.engine.release("slurm-7", 30.0)
    assert known.slurm.done == [("signal", 7, "USR2")]
    known.now_s += 61.0
    known.look(running(7200.0))
    assert known.slurm.done[-1] == ("cancel", 7, False)


def test_what_is_not_ours_is_never_ended(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(running(7200.0))
    for name in ("slurm-8", "ray-7", "7", "slurm-7x"):
        known.engine.release(name, 30.0)
    assert known.slurm.done == []


def test_a_job_that_was_requeued_does_not_become_a_node_again(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(running(7200.0))
    (node,) = known.look(SlurmJob(7, "PENDING", reason="BeginTime"))
    assert (node.state, node.leaves_at_s) == ("releasing", known.now_s), "Slurm thinks it is free"
    assert known.slurm.done == [("cancel", 7, False)]


def test_a_job_that_fails_is_told_once_with_its_last_words_and_its_machine_avoided(
    tmp_path: Path,
) -> None:
    known = Known(tmp_path)
    known.look(running(7200.0))
    (tmp_path / "7.log").write_text("node slurm-7 on n1\nNo module named 'coddl'\n")
    failed = SlurmJob(7, "FAILED", host="n1")
    (node,) = known.look(failed)
    assert node.state == "releasing"
    assert "its Slurm job ended as FAILED: No module named 'coddl'; n1 is avoided" in node.because
    assert known.look(failed) == ()
    known.engine.acquire()
    assert not [word for word in known.slurm.done[-1] if "exclude" in str(word)]
    known.slurm.machines = [SlurmNode("n1", "idle", 8, 2), SlurmNode("n2", "idle", 8, 2)]
    known.engine.acquire()
    assert "--exclude=n1" in known.slurm.done[-1]
    known.now_s += 601.0
    known.engine.acquire()
    assert "--exclude=n1" not in known.slurm.done[-1]


def test_a_job_that_never_ran_fails_for_the_reason_that_slurm_gives(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look()
    (node,) = known.look(SlurmJob(7, "FAILED", reason="BadConstraints"))
    assert node.because == "its Slurm job ended as FAILED: BadConstraints"


def test_a_job_that_has_ended_by_itself_vouches_for_its_processes(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(SlurmJob(7, "COMPLETED"), SlurmJob(8, "CANCELLED"), SlurmJob(9, "NODE_FAIL"))
    assert known.engine.look().ended == ("slurm-7",)


def test_ends_that_slurm_brings_about_are_no_failures(tmp_path: Path) -> None:
    for state in ("TIMEOUT", "PREEMPTED", "CANCELLED", "NODE_FAIL", "COMPLETED"):
        known = Known(tmp_path)
        known.look(running(7200.0))
        assert known.look(SlurmJob(7, state, host="n1")) == ()


def test_slurm_is_not_asked_more_often_than_every_few_seconds(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.look(running(7200.0))
    known.slurm.found = []
    known.now_s += 4.0
    assert known.engine.look().nodes
    known.now_s += 1.0
    assert not known.engine.look().nodes


def test_a_short_limit_has_no_signal_that_might_come_too_early(tmp_path: Path) -> None:
    known = Known(tmp_path, SlurmOptions(time="5"))
    known.engine.acquire()
    assert not [word for word in known.slurm.done[-1] if str(word).startswith("--signal")]


def test_a_pilot_job_asks_for_its_share_of_a_machines_cpus(tmp_path: Path) -> None:
    machines = [SlurmNode("n1", "idle", 64, 8), SlurmNode("n2", "idle", 96, 4)]
    known = Known(tmp_path, SlurmOptions(partition="gpu", time="30"), machines=machines)
    known.engine.acquire()
    words = known.slurm.done[-1]
    assert {"--cpus-per-task=12", "--partition=gpu", "--time=30", "--gres=gpu:2"} <= set(words)
    assert {"--no-requeue", "--job-name=coddl-p1", "--signal=B:USR1@60"} <= set(words)
    own = SlurmOptions(sbatch_args=("--cpus-per-task=4", "--mem=9G"))
    known = Known(tmp_path, own, machines=machines)
    known.engine.acquire()
    said = [word for word in known.slurm.done[-1] if str(word).startswith("--cpus")]
    assert said == ["--cpus-per-task=4"]


def test_a_pool_that_slurm_would_refuse_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Invalid partition name"):
        Known(tmp_path, refuses="allocation failure: Invalid partition name specified")
    Known(tmp_path, refuses="allocation failure: Requested nodes are busy")


def test_the_token_is_in_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    known = Known(tmp_path / "new")
    path = tmp_path / "new" / "pilot.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    known.engine.acquire()
    assert "secret" not in " ".join(map(str, known.slurm.done[-1]))
    order = read_order(tmp_path / "new")
    assert order == PilotOrder(LAUNCH, 2, 60.0, 20.0)


def order_with(slots: int | None) -> PilotOrder:
    return PilotOrder(AgentLaunch(pool="p", server="", token="", slots=slots), 3, 60.0, 30.0)


def test_gpus_are_those_that_slurm_granted() -> None:
    cpu, gpu = order_with(3), order_with(None)
    assert gpu_ids({"SLURM_JOB_GPUS": "1,4-5"}, cpu) == ("1", "4", "5")
    granted = {"SLURM_JOB_GPUS": "1,4-5", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert gpu_ids(granted, gpu) == ("0", "1", "2"), "as this job's control group numbers them"
    for env in ({}, {"CUDA_VISIBLE_DEVICES": "0,1"}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}):
        with pytest.raises(UserError, match="has not granted 3 GPUs"):
            gpu_ids(env, gpu)


def test_jobs_find_nothing_of_slurm_in_their_environment() -> None:
    env = {
        "PATH": "/bin",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "1",
        "SLURM_CONF": "/etc/slurm.conf",
        "CODDL_TOKEN": "x",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    kept = agent_env(env)
    assert kept == {"PATH": "/bin", "SLURM_CONF": "/etc/slurm.conf", "CUDA_VISIBLE_DEVICES": "0"}


def test_a_pilot_job_that_is_started_again_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_order(tmp_path, order_with(3))
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert pilot.main(tmp_path) == 1


# In a real cluster.


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    if because := why_not():
        pytest.skip(because)
    with SlurmCluster(nodes=2) as cluster:
        yield cluster


class TestSlurm(EngineContract):
    """Its agents find no server: they dial on while the contract is looked at."""

    @pytest.fixture
    def engine(self, cluster: SlurmCluster, tmp_path: Path) -> Iterator[Engine]:
        self.cluster, self.folder = cluster, tmp_path
        engine = self.another()
        yield engine
        for node in engine.look().nodes:
            engine.release(node.name, 5.0)
        self.wait(engine, lambda status: not status.nodes)
        engine.close()

    def another(self, options: SlurmOptions = NO_OPTIONS) -> SlurmEngine:
        commands = SlurmCommands({**os.environ, **self.cluster.env})
        return SlurmEngine(
            LAUNCH, options, self.folder, gpus_per_node=2, commands=commands, ask_every_s=0.2
        )

    def again(self, engine: Engine) -> Engine:
        del engine
        return self.another()

    def test_pilot_jobs_show_the_pool_and_end_well_in_slurms_books(self, engine: Engine) -> None:
        name = engine.acquire()
        job = name.removeprefix("slurm-")
        log = self.folder / f"{job}.log"
        self.cluster.wait("its agent", lambda: log.exists() and "GPUs 0,1" in log.read_text())
        shown = self.cluster.run("squeue", "-h", "-j", job, "-o", "%j|%k")
        assert shown == "coddl-p1|CoDDL pool p1 at http://127.0.0.1:9"
        engine.release(name, 30.0)
        self.cluster.wait("its end", lambda: self.cluster.state_of(job) == "COMPLETED")

    def test_a_job_that_waits_says_so_and_is_withdrawn(self, engine: Engine) -> None:
        names = [engine.acquire() for _ in range(3)]
        self.wait(engine, lambda s: "(Resources" in s.nodes[-1].because)
        engine.release(names[2], 30.0)
        self.wait(engine, lambda status: len(status.nodes) == 2)
        assert self.cluster.state_of(names[2].removeprefix("slurm-")) == "CANCELLED"

    def test_a_controller_that_is_away_comes_back_with_its_nodes(self, engine: Engine) -> None:
        name = engine.acquire()
        self.wait(engine, lambda status: status.nodes[0].state == "up")
        self.cluster.stop_controller()
        with pytest.raises(EngineUnavailable, match="Slurm does not answer"):
            self.wait(engine, lambda _status: False)
        self.cluster.start_controller()
        self.wait(engine, lambda status: [node.name for node in status.nodes] == [name])

    @pytest.mark.parametrize(
        ("options", "because"),
        [
            (SlurmOptions(partition="nope"), "Invalid partition name"),
            (SlurmOptions(sbatch_args=("--gres=gpu:9",)), "node configuration is not available"),
            (SlurmOptions(sbatch_args=("--nonsense",)), "unrecognized option"),
        ],
    )
    def test_what_slurm_would_refuse_is_refused_at_once(
        self, engine: Engine, options: SlurmOptions, because: str
    ) -> None:
        del engine
        with pytest.raises(UserError, match=because):
            self.another(options)
        assert not self.cluster.jobs()


def test_the_pilot_job_is_a_command_of_this_interpreter(tmp_path: Path) -> None:
    known = Known(tmp_path)
    known.engine.acquire()
    shell, python = known.slurm.done[-1][-6:-4]
    assert os.access(str(shell), os.X_OK)
    assert python == sys.executable
