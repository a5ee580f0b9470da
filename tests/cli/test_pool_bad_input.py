"""Bad input to the commands of a pool: exact words and exit codes, and nothing half done."""

from pathlib import Path

import pytest

from tests.cli.conftest import Coddl
from tests.cli.recorded import JOB
from tests.cli.stub_pool import NOT_FOUND, StubPool

pytestmark = pytest.mark.usefixtures("work_folder")

BAD = {
    "nodes that could not reach the server": (
        ("up", "--engine", "ray", "--gpus-per-node", "4"),
        2,
        "--engine ray can't be used",
        "the server would listen on 127.0.0.1, which other machines can't reach",
        "--host 0.0.0.0; or --host 127.0.0.1 if all its nodes are on this machine",
    ),
    "an engine that is misspelt": (
        ("up", "--engine", "slrm", "--gpus-per-node", "4"),
        2,
        "--engine slrm can't be used",
        "the engines are: local, ray, slurm",
        "--engine slurm",
    ),
    "an option of Slurm for another engine": (
        ("up", "--engine", "ray", "--gpus-per-node", "4", "--partition", "gpu"),
        2,
        "--partition can't be used",
        "it is an option of Slurm alone",
        "--engine slurm",
    ),
    "a job of several nodes for one": (
        ("up", "--engine", "slurm", "--gpus-per-node", "4", "--sbatch-arg=--nodes=2"),
        2,
        "--sbatch-arg --nodes=2 can't be used",
        "coddl sets it: each node is one job on one machine",
        "no such arg",
    ),
    "an argument for no job": (
        ("up", "--engine", "slurm", "--gpus-per-node", "4", "--server-sbatch-arg=--mem=1G"),
        2,
        "--server-sbatch-arg can't be used",
        "the server has no Slurm job",
        "--server-in-job, too",
    ),
    "an address of Slurm": (
        ("up", "--engine", "slurm", "--gpus-per-node", "4", "--address", "head:1"),
        2,
        "--address head:1 can't be used",
        "it is the address of a Ray cluster",
        "--engine ray",
    ),
    "a certificate without its key": (
        ("up", "--tls-cert", "head.pem"),
        2,
        "--tls-cert can't be used by itself",
        "TLS needs a certificate and its key, and --tls-key is not given",
        "--tls-cert FILE --tls-key FILE",
    ),
    "a key without its certificate": (
        ("server", "--tls-key", "head.key"),
        2,
        "--tls-key can't be used by itself",
        "TLS needs a certificate and its key, and --tls-cert is not given",
        "--tls-cert FILE --tls-key FILE",
    ),
    "an unknown field": (
        ("submit", "-f", "job.yaml"),
        2,
        'job "bert" cannot be accepted',
        'there is no field "gpu"',
        "gpus",
    ),
    "a list for a job": (
        ("submit", "-f", "list.yaml"),
        2,
        "-f list.yaml is not a job",
        "it is not a mapping of fields to values",
        "script: train.py",
    ),
    "no such file": (
        ("submit", "-f", "no.yaml"),
        2,
        "-f no.yaml can't be read",
        "No such file or directory",
        "-f job.yaml",
    ),
    "nothing to run": (
        ("submit",),
        2,
        "the job cannot be accepted",
        "a job is either a script or a command, and neither is given",
        "coddl submit train.py; in a file, script: train.py",
    ),
    "a missing script": (
        ("submit", "nosuch.py"),
        2,
        "nosuch.py can't be submitted",
        "there is no such file",
        "coddl submit train.py",
    ),
    "a command without dashes": (
        ("submit", "sleep", "1"),
        2,
        "sleep can't be submitted",
        "there is no such script",
        "coddl submit train.py, or coddl submit -- sleep 1",
    ),
    "bounds the wrong way round": (
        ("submit", "--gpus", "8..2", "train.py"),
        2,
        "the job cannot be accepted",
        'gpus: "8..2" has a minimum above its maximum',
        "2..8",
    ),
    "a range for a command": (
        ("submit", "--gpus", "1..2", "--", "sleep", "1"),
        2,
        "the job cannot be accepted",
        "its tier is opaque, so it can't be resized while it runs, and gpus is 1..2",
        "gpus: 2, or tier: elastic",
    ),
    "a variable without a value": (
        ("submit", "--env", "SEED", "train.py"),
        2,
        "--env SEED can't be used",
        '"SEED" is not of the form NAME=VALUE',
        "--env SEED=1",
    ),
    "no such interpreter": (
        ("submit", "--python", "nosuchpython", "train.py"),
        2,
        "--python nosuchpython can't be used",
        "there is no such program here",
        "its absolute path on the nodes, as in --python /opt/venv/bin/python",
    ),
    "a size in words": (
        ("resize", "12", "many"),
        2,
        "many can't be used as a size",
        '"many" is neither a number above 0 nor a range MIN..MAX',
        "4, or 1..8",
    ),
    "workers for a pool's job": (
        ("resume", "12", "2"),
        2,
        "12 can't be resumed with 2 workers",
        "in a pool, the policy decides how many GPUs a job gets",
        "coddl resize 12 2, then coddl resume 12",
    ),
    "a time in words": (
        ("logs", "--since", "yesterday", "12"),
        2,
        "--since yesterday can't be used",
        '"yesterday" is not a number followed by s, m, h or d',
        "--since 10m",
    ),
    "no such state": (
        ("wait", "12", "--for", "done"),
        2,
        "--for DONE can't be used",
        '"DONE" is not a state of a job',
        "one of PENDING, STARTING, RUNNING, RESIZING, SUSPENDED, PREEMPTED, STOPPING, SUCCEEDED, "
        "FAILED, CANCELLED",
    ),
    "too late": (
        ("wait", "12", "--timeout", "0"),
        124,
        "job 12 is not finished yet",
        "the --timeout of 0 s has passed",
        "coddl explain 12",
    ),
    "no such job": (
        ("describe", "x"),
        102,
        'job "x" cannot be found',
        "no job has that name",
        "coddl ls --all",
    ),
    "agents that would share devices": (
        ("up", "--agents", "2"),
        2,
        "--agents 2 can't be used by itself",
        "all agents would use the same GPUs",
        "--agents 2 --slots 2",
    ),
    "a speed table for a pool that is not emulated": (
        ("up", "--speeds", "step_times.csv"),
        2,
        "--speeds step_times.csv can't be used",
        "it is about emulated nodes, and --emulate is not given",
        "--emulate 16x4 --speeds step_times.csv",
    ),
    "slots for emulated nodes": (
        ("up", "--emulate", "2x2", "--slots", "4"),
        2,
        "--slots 4 can't be used",
        "the nodes of the pool are emulated, as --emulate says",
        "--emulate 2x2 alone",
    ),
    "emulated nodes in words": (
        ("up", "--emulate", "sixteen"),
        2,
        'cluster "sixteen" cannot be used',
        "it is neither a short form nor an existing file",
        "16x4 (16 nodes of 4 GPUs), 8x4:v100+8x8:k80, or the path of a YAML file",
    ),
    "emulated resizes that nobody can emulate": (
        ("up", "--emulate", "2x2", "--reconfigure", "serial:30"),
        2,
        "resizes that cost serial cannot be emulated",
        "the modes are: stall, concurrent",
        "stall:30 or concurrent:20,1",
    ),
}


@pytest.mark.parametrize(("words", "code", "what", "because", "try_"), BAD.values(), ids=BAD.keys())
def test_bad_input(
    coddl: Coddl, pool: StubPool, words: tuple[str, ...], *, code: int, what: str, because: str,
    try_: str,
) -> None:  # fmt: skip
    Path("job.yaml").write_text("name: bert\nscript: train.py\ngpu: 4\n")
    Path("list.yaml").write_text("- train.py\n")
    pool.will("GET", "/jobs/x", NOT_FOUND)
    pool.will("GET", "/jobs/12", JOB)
    done = coddl(*words)
    assert done.err == f"error: {what}\n  because {because}\n  try     {try_}\n"
    assert (done.code, done.out) == (code, "")
    assert not [asked for asked in pool.asked if asked.method != "GET"], "nothing is half done"


def test_where_there_is_no_pool(coddl: Coddl, tmp_path: Path) -> None:
    for words in (("ls",), ("submit", "train.py"), ("nodes",), ("events",), ("logs", "1")):
        done = coddl(*words)
        assert (done.code, done.out) == (1, "")
        assert done.err == (
            "error: no pool is running\n"
            f"  because {tmp_path}/state/coddl/pool/server.json does not exist or names no server\n"
            "  try     coddl up, or --server http://HOST:7433\n"
        )


def test_a_folder_that_is_too_large_is_refused_before_anything_is_sent(
    coddl: Coddl, pool: StubPool
) -> None:
    with Path("data.bin").open("wb") as file:
        file.truncate(300 << 20)
    done = coddl("submit", "train.py")
    assert done.code == 2
    assert "data.bin 300 MB\n  try     add data.bin to .coddlignore" in done.err
    assert pool.asked == []


def test_a_script_that_stays_here_is_refused(coddl: Coddl, pool: StubPool) -> None:
    Path(".coddlignore").write_text("*.py\n")
    done = coddl("submit", "train.py")
    assert done.code == 2
    assert "because it is excluded from the upload" in done.err
    assert pool.asked == []
