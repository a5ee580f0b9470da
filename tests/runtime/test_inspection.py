"""What a worker learns of its passes: with a clock that a test moves, and in real trainings."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.autograd import Function  # noqa: E402

from coddl.runtime.wire import Message  # noqa: E402
from coddl.runtime.worker import gradients, inspection  # noqa: E402
from coddl.runtime.worker.backward import Backward, NoExchange  # noqa: E402
from coddl.runtime.worker.gradients import grouped  # noqa: E402
from coddl.runtime.worker.inspection import (  # noqa: E402
    EARLY_S,
    PASSES,
    WARM_UP,
    PassClock,
    PassInspector,
)
from tests.runtime.elastic import SCRIPTS, Elastic, environment, line_of  # noqa: E402

MIB = 1 << 20
LAYERS = 4  # of 1 MiB each, without a bias


class ManualClock(PassClock):
    """A clock that stands still unless it is moved; None in the place of a time: it can't mark."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))
        self.now_s: float | None = 0.0
        self.reached_s = float("inf")  # up to when marks are past
        self.host_part = 0.0  # of the time between two marks: the host beside a GPU
        self.on_host_s = 0.0

    def host_s(self) -> float:
        return self.on_host_s

    def mark(self) -> float | None:
        return self.now_s

    def is_past(self, mark: Any) -> bool:
        return float(mark) <= self.reached_s

    def host_seconds(self, begin: Any, end: Any) -> float:
        return self.host_part * self.seconds(begin, end)

    def takes(self, forward_s: float, backward_s: float) -> Callable[[Any], Any]:
        """Give a layer that changes nothing and takes that long."""
        clock = self

        class Takes(Function):
            @staticmethod
            def forward(_context: Any, x: Any) -> Any:
                clock.move(forward_s)
                return x.clone()

            @staticmethod
            def backward(_context: Any, *found: Any) -> Any:
                clock.move(backward_s)
                return found[0]

        return lambda x: Takes.apply(x)  # type: ignore[no-untyped-call]

    def move(self, seconds: float) -> None:
        if self.now_s is not None:
            self.now_s += seconds


class Training:
    """A loop as a session drives it: forward 1 s a layer, backward 2 s, update 3 s, data 5 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        monkeypatch.setattr(gradients, "BUCKET_BYTES", MIB)
        self.clock = ManualClock()
        self.told: list[Message] = []
        self.layers = nn.ModuleList(nn.Linear(512, 512, bias=False) for _ in range(LAYERS))
        self.more: list[nn.Module] = []
        self.takes = self.clock.takes(1.0, 2.0)
        self.original = torch.autograd.backward
        self.inspector = PassInspector(
            self.clock,
            lambda: grouped([p for m in (self.layers, *self.more) for p in m.parameters()]),
            Backward(NoExchange()).observe,
            options.pop("tell", self.told.append),
            **options,
        )

    def loss(self) -> Any:
        x = torch.ones(1, 512)
        for layer in self.layers:
            x = self.takes(layer(x))
        return x.sum()

    def begin(self, samples: int = 8) -> None:
        self.clock.move(5.0)
        self.inspector.begin(samples)

    def run(self, passes: int, samples: int = 8) -> None:
        for _ in range(passes):
            self.begin(samples)
            self.loss().backward()
            self.inspector.mark("other")
            self.clock.move(3.0)
            self.inspector.mark("update")
            self.clock.move(0.5)
            self.inspector.mark("other")

    def is_untouched(self) -> bool:
        hooked = [p for p in self.layers.parameters() if p._post_accumulate_grad_hooks]
        return torch.autograd.backward is self.original and not hooked


def slice_of(samples: int, forward_s: float, backward_s: float, host: float = 0.0) -> Message:
    """What is told of passes, with the part of them that the host has taken beside a GPU."""
    times = {"forward_s": forward_s, "backward_s": backward_s}
    hosts = {"forward_host_s": host * forward_s, "backward_host_s": host * backward_s}
    return {"samples": samples, **times, **hosts}


def test_phases_add_up_to_a_pass_and_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + PASSES)
    assert not training.told, "the wait for data after the last pass is not known yet"
    training.run(30)
    (told,) = training.told
    assert told["slices"] == [slice_of(8, 4.0, 8.0)]
    assert (told["update_s"], told["other_s"], told["data_s"]) == (3.0, 0.5, 5.0)
    assert training.is_untouched()


def test_what_the_host_takes_beside_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.clock.host_part = 0.25
    training.run(WARM_UP + PASSES + 1)
    (told,) = training.told
    assert told["slices"] == [slice_of(8, 4.0, 8.0, host=0.25)]


def test_what_the_host_takes_is_not_known_while_the_gpu_lags_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The host may wait for the GPU then, as a blocking copy of the next batch does."""
    training = Training(monkeypatch)
    training.clock.host_part, training.clock.reached_s = 1.0, 0.0
    training.run(WARM_UP + PASSES + 1)
    training.clock.reached_s = float("inf")
    training.run(1)
    (told,) = training.told
    assert told["slices"] == [slice_of(8, 4.0, 8.0)]


def test_slow_passes_are_told_when_there_are_a_few_and_again_when_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + 1)
    training.clock.on_host_s += EARLY_S
    training.run(2)
    assert not training.told, "two are too few"
    training.run(1)
    assert len(training.told) == 1
    training.run(PASSES)
    early, late = training.told
    assert early == late


def test_one_stall_of_the_loader_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + 3)
    training.clock.move(1000.0)
    training.run(PASSES)
    assert training.told[0]["data_s"] == 5.0


def test_waits_that_come_again_and_again_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of loader processes: every fourth batch is waited for."""
    training = Training(monkeypatch)
    for number in range(WARM_UP + PASSES + 1):
        training.clock.move(100.0 * (number % 4 == 0))
        training.run(1)
    assert training.told[0]["data_s"] == 5.0 + 25.0


def test_warm_up_is_not_timed_and_begins_anew_in_another_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP)
    assert training.is_untouched()
    training.run(1)
    assert not training.is_untouched()
    training.inspector.regroup()
    assert training.is_untouched()
    training.run(WARM_UP)
    assert training.is_untouched()


def test_buckets_are_ready_in_the_order_of_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + PASSES + 1)
    buckets = training.told[0]["buckets"]
    # Each layer's gradient is there after the 2 s of what follows it; the last with backward's end.
    assert [each["ready"] for each in buckets] == [0.25, 0.5, 0.75, 1.0]
    assert [each["bytes"] for each in buckets] == [MIB] * LAYERS


def test_a_bucket_waits_for_those_before_it_and_none_is_sent_without_a_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    unused, half_used = nn.Linear(512, 512, bias=False), nn.Linear(512, 512)
    training.more = [unused, half_used]
    for _ in range(WARM_UP + PASSES + 1):
        training.begin()
        (training.loss() + half_used.bias.sum()).backward()
    buckets = training.told[0]["buckets"]
    assert len(buckets) == LAYERS + 1
    assert {each["ready"] for each in buckets} == {1.0}, "the first one is complete at the end only"


def test_two_backwards_send_their_buckets_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    for _ in range(WARM_UP + PASSES + 1):
        training.begin()
        training.loss().backward()
        training.loss().backward()
    (told,) = training.told
    assert told["slices"] == [slice_of(8, 8.0, 16.0)]
    assert [each["ready"] for each in told["buckets"]] == [n / 8 for n in range(1, 9)]


def test_many_buckets_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "BUCKETS_MAX", 3)
    training = Training(monkeypatch)
    training.run(WARM_UP + PASSES + 1)
    assert training.told[0]["buckets"] == [
        {"bytes": 2 * MIB, "ready": 0.5},
        {"bytes": 2 * MIB, "ready": 1.0},
    ]


def test_without_overlap_nothing_is_hooked_and_all_is_sent_after_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch, overlap=False)
    training.run(WARM_UP + 1)
    assert not any(p._post_accumulate_grad_hooks for p in training.layers.parameters())
    training.run(PASSES)
    assert training.told[0]["buckets"] == [{"bytes": MIB, "ready": 1.0}] * LAYERS


def test_another_size_is_told_when_it_has_been_seen_three_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    for _ in range(6):  # epochs with a smaller last batch, and an evaluation
        training.run(9)
        training.run(1, samples=3)
        training.inspector.rest()
        training.clock.move(1000.0)
    sizes = [[each["samples"] for each in told["slices"]] for told in training.told]
    assert sizes[-1] == [3, 8]
    assert len(training.told) == 2
    assert training.told[-1]["data_s"] == 5.0, "what follows an epoch is left out"
    assert training.told[-1]["other_s"] == 0.5


def test_updates_after_every_other_pass_count_half(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    for number in range(WARM_UP + PASSES + 1):
        training.begin()
        training.loss().backward()
        if number % 2:
            training.inspector.mark("other")
            training.clock.move(3.0)
            training.inspector.mark("update")
    assert training.told[0]["update_s"] == 1.5


def test_an_optimizer_that_steps_within_backward_is_a_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)

    def step(_parameter: Any) -> None:
        training.inspector.mark("other")
        training.clock.move(1.0)
        training.inspector.mark("update")

    next(training.layers.parameters()).register_post_accumulate_grad_hook(step)
    for _ in range(WARM_UP + PASSES + 1):
        training.begin()
        training.loss().backward()
    (told,) = training.told
    assert told["slices"] == [slice_of(8, 4.0, 9.0)]
    assert told["update_s"] == 0.0


def test_nothing_is_read_before_the_gpu_has_come_there(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.clock.reached_s = 0.0
    training.run(WARM_UP + PASSES + 10)
    assert not training.told
    assert training.is_untouched(), "enough is under way"
    training.clock.reached_s = float("inf")
    training.run(1)
    assert len(training.told) == 1


def test_a_pass_that_captures_a_graph_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + 3)
    before_s, training.clock.now_s = training.clock.now_s, None
    training.run(2)
    training.clock.now_s = before_s
    training.run(PASSES)
    assert training.told[0]["slices"][0]["backward_s"] == 8.0


def test_a_short_training_tells_at_its_end_and_one_without_backward_never(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    training = Training(monkeypatch)
    training.run(WARM_UP + 3)
    training.inspector.finish()
    assert [len(told["slices"]) for told in training.told] == [1]
    silent = Training(monkeypatch)
    for _ in range(50):
        silent.begin()
        silent.loss()
    silent.inspector.finish()
    assert not silent.told


@pytest.mark.parametrize("why", ["no supervisor", "switched off", "waits for others"])
def test_nothing_is_touched_where_nothing_can_be_learned(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "switched off":
        monkeypatch.setenv("CODDL_INSPECT", "0")
    training = Training(monkeypatch, **({"tell": None} if why == "no supervisor" else {}))
    training.inspector.regroup(is_apt=why != "waits for others")
    for _ in range(WARM_UP + 5):
        training.run(1)
        assert training.is_untouched()


# -- real trainings


def profile(job: Elastic, when: Callable[[Message], bool] = lambda _: True) -> Message:
    """Wait for a profile that fits."""
    told = job.wait(lambda event: event["is"] == "profile" and when(event["profile"]))
    found: Message = told["profile"]
    return found


def size(told: Message, samples: int) -> Message:
    (found,) = (each for each in told["slices"] if each["samples"] == samples)
    return dict(found)


def test_a_training_tells_what_its_phases_cost(tmp_path: Path) -> None:
    with Elastic(tmp_path, "inspected.py", "--epochs", "5") as job:
        printed = job.finish()
        told = profile(job, lambda found: len(found["slices"]) == 2)
    whole, last = size(told, 8), size(told, 4)
    assert min(whole["forward_s"], last["forward_s"]) >= 0.004
    assert min(whole["backward_s"], last["backward_s"]) >= 0.006
    assert told["update_s"] >= 0.003
    assert told["other_s"] >= 0.002
    assert told["data_s"] >= 8 * 0.0005
    parameter_bytes = 4 * (4 * 8 + 8 + 8 + 1)
    assert sum(each["bytes"] for each in told["buckets"]) == parameter_bytes
    assert told["buckets"][-1]["ready"] == 1.0
    assert told["state_bytes"] == 2 * parameter_bytes, "and the momentum"
    about = (told["device"], told["batch"], told["virtual_nodes"], told["largest_tensor_bytes"])
    assert about == ("cpu", 8, None, 4 * 32)
    assert len(told["signature"]) == 16
    assert "0 hooks, backward replaced: <function backward" in line_of(printed, "left")


def test_coddl_run_writes_a_profile(tmp_path: Path) -> None:
    script = [str(SCRIPTS / "inspected.py"), "--epochs", "4"]
    options = ["--fresh", "--checkpoint-dir", str(tmp_path / "c"), "--profile", "profile.json"]
    done = subprocess.run(
        [sys.executable, "-m", "coddl", "run", *options, *script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "profile.json").read_text())
    assert size(told, 8)["forward_s"] >= 0.004


def test_slices_after_a_resize_are_another_size(tmp_path: Path) -> None:
    arguments = ("--epochs", "12", "--samples", "72", "--pace-s", "0.02")
    with Elastic(tmp_path, "inspected.py", *arguments) as job:
        profile(job)
        job.ask("resize", workers=2)
        told = profile(job, lambda found: len(found["slices"]) == 2)
        job.finish()
    assert [each["samples"] for each in told["slices"]] == [4, 8]


def test_micro_batches_are_counted_together(tmp_path: Path) -> None:
    arguments = ("--epochs", "4", "--samples", "72", "--micro-batch", "2")
    with Elastic(tmp_path, "inspected.py", *arguments) as job:
        told = profile(job)
        job.finish()
    assert size(told, 8)["forward_s"] >= 4 * 0.004
    assert size(told, 8)["backward_s"] >= 4 * 0.006
    assert {each["ready"] for each in told["buckets"]} == {1.0}


def test_a_strict_training_is_inspected_and_keeps_its_bits(tmp_path: Path) -> None:
    arguments = ("inspected.py", "--strict", "--epochs", "4", "--samples", "72")
    with Elastic(tmp_path / "on", *arguments, "--micro-batch", "2") as job:
        told = profile(job)
        weights = line_of(job.finish(), "weights")
    assert told["virtual_nodes"] == 4
    assert size(told, 8)["forward_s"] >= 4 * 0.004
    assert size(told, 8)["backward_s"] >= 4 * 0.006
    assert told["update_s"] >= 0.003
    assert told["data_s"] >= 8 * 0.0005
    assert [each["ready"] for each in told["buckets"]] == [1.0]
    off = {"CODDL_INSPECT": "0"}
    with Elastic(tmp_path / "off", *arguments, "--micro-batch", "2", env=off) as job:
        assert line_of(job.finish(), "weights") == weights
    assert not [event for event in job.events if event["is"] == "profile"]
