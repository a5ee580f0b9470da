"""On an NVIDIA GPU: `make test-gpu`. One is enough; tests that need two say so."""

import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from coddl.runtime.errors import TrainingError
from tests.runtime.elastic import Elastic, alone, line_of

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs an NVIDIA GPU", allow_module_level=True)

from torch._C._distributed_c10d import TCPStore  # noqa: E402

from coddl.runtime.supervisor.environment import ON_ONE_GPU  # noqa: E402
from coddl.runtime.worker.group import connect  # noqa: E402
from tests.runtime.test_syncnorm import check_layer  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.mark.parametrize("script", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_an_example_trains_on_cuda_and_is_resized(tmp_path: Path, script: str) -> None:
    with Elastic(tmp_path, str(EXAMPLES / script), workers=1) as job:
        job.wait_step(10)
        assert job.ask("resize", workers=2)["change"]["to"] == 2
        assert job.ask("resize", workers=1)["change"]["to"] == 1
        job.finish()


def test_strict_training_has_the_same_bits_on_one_gpu(tmp_path: Path) -> None:
    args = ("--strict", "--epochs", "4", "--pace-s", "0.01")
    hashes = []
    for sizes in ((), (2, 3, 1)):
        folder = tmp_path / f"{len(sizes)}"
        folder.mkdir()
        with Elastic(folder, "net.py", *args, workers=1) as job:
            job.wait_step(3)
            for size in sizes:
                job.ask("resize", workers=size)
            hashes.append(line_of(job.finish(), "hash"))
    assert hashes[0] == hashes[1]


def test_a_training_is_inspected_on_a_gpu(tmp_path: Path) -> None:
    with Elastic(tmp_path, "net.py", "--epochs", "8", workers=1) as job:
        told = job.wait(lambda event: event["is"] == "profile" and event["profile"]["memory"])
        job.finish()
    found = told["profile"]
    assert found["device"] == torch.cuda.get_device_name()
    (whole,) = (each for each in found["slices"] if each["samples"] == found["batch"])
    assert 0.0 < min(whole["forward_s"], whole["backward_s"], found["update_s"]) < 1.0
    ready = [each["ready"] for each in found["buckets"]]
    assert ready == sorted(ready)
    assert ready[-1] == 1.0


def test_suspending_frees_the_gpu_and_resuming_goes_on(tmp_path: Path) -> None:
    args = ("--strict", "--epochs", "8", "--pace-s", "0.01")
    with Elastic(tmp_path, "net.py", *args, workers=1) as job:
        job.wait_step(5)
        job.ask("suspend")
        assert job.status()["workers"] == []
        job.ask("resume", workers=2)
        assert job.finish()


def test_default_training_is_resized_and_survives_a_kill_on_one_gpu(tmp_path: Path) -> None:
    args = ("--exact", "--epochs", "30", "--pace-s", "0.01")
    with Elastic(tmp_path / "lone", "net.py", *args[:3], workers=1) as job:
        lone = line_of(job.finish(), "counts")
    with Elastic(tmp_path / "resized", "net.py", *args, workers=1) as job:
        job.wait_step(5)
        job.ask("resize", workers=3)
        job.kill(0)
        job.wait_kind("regrouped")
        job.ask("resize", workers=2)
        assert line_of(job.finish(), "counts") == lone


def errors(printed: str) -> list[float]:
    return [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("epoch ")]


def test_a_batch_that_does_not_fit_raises_the_minimum_and_loses_no_step(tmp_path: Path) -> None:
    with Elastic(tmp_path / "slices", "large.py", workers=2) as job:
        job.wait_step(12)
        job.ask("resize", workers=1, wait=False)
        limit = job.wait_kind("memory")
        assert limit["workers_min"] == 2
        assert limit["because"] == "a slice of 64 samples does not fit in memory"
        shrunk = job.wait(lambda e: e["is"] == "resized" and e["to"] == 1)
        back = job.wait_kind("restarted")
        assert (back["to"], back["step"]) == (2, shrunk["step"]), job.story()
        slices = errors(job.finish())
    with Elastic(tmp_path / "chunks", "large.py", "--micro-batch", "16", workers=1) as job:
        chunks = errors(job.finish())
    assert slices == pytest.approx(chunks, rel=2e-2)


def test_a_size_that_would_not_fit_is_refused_before_it_is_tried(tmp_path: Path) -> None:
    with Elastic(tmp_path, "large.py", "--memory-gb", "6", workers=4) as job:
        job.wait_step(12)
        job.ask("resize", workers=2)
        limit = job.wait_kind("memory")
        assert (limit["workers_min"], limit["evidence"]) == (2, "predicted"), limit
        assert re.fullmatch(
            r"a slice of 64 samples would need about [67]\.\d+ GiB of the GPU's 5\.\d+ GiB "
            r"\(measured at 16 and 32\)",
            limit["because"],
        ), limit
        memory = job.status()["memory"]
        assert memory["peak_bytes"]["16"] < memory["peak_bytes"]["32"] < memory["device_bytes"]
        assert 0 < memory["update_bytes"]["16"] < memory["peak_bytes"]["32"]
        with pytest.raises(TrainingError, match="can't run on 1 workers"):
            job.ask("resize", workers=1)
        job.finish()
        assert job.sizes() == [4, 2], "it was never tried"
        assert "OutOfMemoryError" not in job.printed()


def _store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_nccl_groups_are_built_beside_training_swapped_and_aborted() -> None:
    store, made = _store(), []

    def build() -> None:
        torch.cuda.set_device(0)
        for number in range(3):
            at = ("127.0.0.1", store.port)
            made.append(connect(at, f"g{number}", 0, 1, backend="nccl", host="127.0.0.1"))

    weight = torch.ones(2048, 2048, device="cuda")
    steps_s = []
    builder = threading.Thread(target=build)
    builder.start()
    while builder.is_alive():
        start_s = time.perf_counter()
        for _ in range(20):
            weight = (weight @ weight).tanh()
        torch.cuda.synchronize()
        steps_s.append(time.perf_counter() - start_s)
    assert len(made) == 3
    for group in made:  # each in its turn is the one in use
        value = torch.full((1000,), 3.0, device="cuda")
        group.finish(group.all_reduce(value))
        assert float(value.sum()) == 3000.0
        group.drop()
    print(f"{len(steps_s)} steps meanwhile, the longest {max(steps_s) * 1e3:.0f} ms")  # noqa: T201


HEARING = {"an error": {}, "the supervisor alone": {"DEAF": "1"}}


@pytest.mark.parametrize("heard_from", HEARING)
@pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
def test_workers_survive_a_peer_over_nccl(tmp_path: Path, heard_from: str, strict: bool) -> None:
    args = ("--strict" if strict else "--exact", "--epochs", "60", "--pace-s", "0.01")
    env = HEARING[heard_from] | {ON_ONE_GPU: "1"}
    with Elastic(tmp_path, "net.py", *args, workers=3, env=env) as job:
        job.wait_step(10)
        assert job.ask("resize", workers=2)["change"]["to"] == 2
        assert job.ask("resize", workers=3)["change"]["to"] == 3
        since, step = len(job.events), job.status()["step"]
        survivors = set(job.pids().items()) - {(1, job.pids()[1])}
        killed_s = time.monotonic()
        job.kill(1)
        regrouped = job.wait_kind("regrouped", since)
        job.wait(lambda e: e["is"] == "progress" and e["step"] > max(step, regrouped["step"]))
        print(f"{time.monotonic() - killed_s:.2f} s from the kill to the next step")  # noqa: T201
        assert survivors <= set(job.pids().items())
        assert job.finish()


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_layer_of_syncbatchnorm_computes_what_batchnorm_does(
    dtype: Any, affine: bool, layout: Any
) -> None:
    torch.manual_seed(0)
    check_layer("cuda", dtype, affine=affine, layout=layout)


@pytest.mark.parametrize("over", [{}, {ON_ONE_GPU: "1"}], ids=["gloo", "nccl"])
@pytest.mark.parametrize("fault", ["", "1:before-norm", "1:before-norm-backward"])
def test_syncbatchnorm_sees_the_global_batch_and_survives_a_kill(
    tmp_path: Path, fault: str, over: dict[str, str]
) -> None:
    want = float(line_of(alone("synced.py"), "loss").split()[1])
    env = over | {"FAULT": fault, "FIRST_JOINER": "9"}
    with Elastic(tmp_path, "synced.py", workers=3, env=env) as job:
        loss = float(line_of(job.finish(), "loss").split()[1])
    assert loss == pytest.approx(want, rel=0.1 if fault else 1e-6)


@two_gpus
def test_two_gpus_train_over_nccl_and_survive_a_kill(tmp_path: Path) -> None:
    args = ("--epochs", "20", "--pace-s", "0.005")
    with Elastic(tmp_path, "net.py", *args, workers=1) as job:
        job.wait_step(5)
        job.ask("resize", workers=2)
        job.kill(1)
        job.wait_kind("regrouped")
        assert job.finish()
