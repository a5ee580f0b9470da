"""Breaks or holds a worker at a named point: FAULT="WORKER:POINT" or HOLD="WORKER:POINT".

FAULT is SIGKILL, mostly. HOLD makes a file "held" and waits until there is one called "go".
"""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from coddl.runtime.worker import (
    exchange,
    group,
    handover,
    membership,
    peers,
    session,
    state,
    supervisor_link,
    syncnorm,
)
from coddl.runtime.worker.group import Group, GroupError
from coddl.runtime.worker.strict import exchange as strict_exchange
from coddl.runtime.worker.strict import session as strict_session

STEP = 25  # from which on points of the training loop take effect


def strike() -> None:
    if "FAULT" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    Path("held").touch()
    while not Path("go").exists():
        time.sleep(0.01)


def is_time() -> bool:
    """Spare the job's start: those who are there from the beginning are struck in training."""
    from coddl.runtime.worker import prepare

    if int(os.environ["CODDL_WORKER"]) >= int(os.environ.get("FIRST_JOINER", "2")):
        return True
    return prepare._session is not None and prepare._session.step > 3


def around(owner: type, method: str, when: str, applies: Callable[..., bool]) -> None:
    original = getattr(owner, method)

    def wrapped(self: Any, *args: Any, **named: Any) -> Any:
        now = is_time() and applies(self, *args, **named)
        if now and when == "before":
            strike()
        result = original(self, *args, **named)
        if now and when == "after":
            strike()
        return result

    setattr(owner, method, wrapped)


def break_exchange_once() -> None:
    """Fail where a peer has succeeded: the sums are there, but this worker is told otherwise."""
    original = strict_exchange.StrictExchange.finish
    done: list[bool] = []

    def finish(self: strict_exchange.StrictExchange, vote: bool) -> Any:
        kept = {id(p): p.grad for p in self.parameters}
        buffers = [b.clone() for b in self._buffers.all]
        result = original(self, vote)
        if not done and current().step >= STEP:
            done.append(True)
            for parameter in self.parameters:
                parameter.grad = kept[id(parameter)]
            for buffer, before in zip(self._buffers.all, buffers, strict=True):
                buffer.copy_(before)
            raise group.GroupError("said the saboteur")
        return result

    strict_exchange.StrictExchange.finish = finish  # type: ignore[method-assign]
    ordinary = exchange.Exchange._finish

    def finish_ordinary(self: exchange.Exchange, *args: Any, **named: Any) -> None:
        kept = [(p, None if p.grad is None else p.grad.clone()) for p in self._parameters()]
        ordinary(self, *args, **named)
        if not done and current().step >= STEP:
            done.append(True)
            for parameter, grad in kept:
                parameter.grad = grad
            raise group.GroupError("said the saboteur")

    exchange.Exchange._finish = finish_ordinary  # type: ignore[method-assign]


def miss_norm_once(number: int) -> None:
    """Fail where peers have succeeded: in a sum of a SyncBatchNorm, counted within its step."""
    original = peers._added_up
    seen: list[bool] = []

    def added_up(members: Any, vector: Tensor) -> Tensor:
        result = original(members, vector)
        if current().step == STEP:
            seen.append(True)
            if len(seen) == number:
                raise group.GroupError("said the saboteur")
        return result

    peers._added_up = added_up  # type: ignore[assignment]


def miss_share_once() -> None:
    """Fail where peers have succeeded: in handing on what a worker lacks that skipped a batch."""
    original = handover.Handover.bring
    done: list[bool] = []

    def bring(self: handover.Handover, group: Group, source: int, behind: Sequence[int]) -> None:
        if done:
            original(self, group, source, behind)
            return
        done.append(True)
        nodes = [node for (node,) in self._gathered(group, [self._host])]
        with self._handed_over(group, source, behind, nodes):
            pass
        raise GroupError("said the saboteur")

    handover.Handover.bring = bring  # type: ignore[method-assign]


def current() -> session.TrainingSession | strict_session.StrictSession:
    from coddl.runtime.worker import prepare

    assert prepare._session is not None
    return prepare._session


def late(*_: Any, **__: Any) -> bool:
    return current().step >= STEP


def note_pass() -> None:
    Path(f"pass-{current().step}-{os.environ['CODDL_WORKER']}").touch()


def mark_passes() -> None:
    """Have every worker leave a file as its pass begins, for the one that is to be struck.

    A peer's death breaks the sum of the step before, too, where that has not arrived everywhere.
    """
    for owner, method in (
        (exchange.Exchange, "begin_backward"),
        (syncnorm.SyncNorm, "_statistics"),
    ):
        leave_file(owner, method)


def leave_file(owner: type, method: str) -> None:
    original = getattr(owner, method)

    def wrapped(*args: Any, **named: Any) -> Any:
        if late():
            note_pass()
        return original(*args, **named)

    setattr(owner, method, wrapped)


def late_among_others(*_: Any, **__: Any) -> bool:
    """Tell whether it is time, once all workers are in the same pass: that one lacks a slice."""
    now = current()
    assert isinstance(now, session.TrainingSession)
    if now.step < STEP:
        return False
    note_pass()
    while len(list(Path().glob(f"pass-{now.step}-*"))) < now.place[1]:
        time.sleep(0.01)
    return True


def slowness_s() -> float:
    """Tell how much slower than others this worker shall be: SLOW="WORKER:SECONDS"."""
    worker, _, seconds = os.environ.get("SLOW", "-1:0").partition(":")
    return float(seconds) if worker == os.environ.get("CODDL_WORKER") else 0.0


def deafen() -> None:
    """Hide from workers what NCCL knows of a dead peer, as links without errors do."""

    def check(self: group.Group) -> None:
        if self._is_aborted:
            raise group.GroupError("told to abandon it")

    group.Group._check = check  # type: ignore[method-assign]


def arm() -> None:
    """Arrange for what shall happen to this worker, if it is the one."""
    if "DEAF" in os.environ:
        deafen()
    if os.environ.get("HOSTS") == "2" and int(os.environ.get("CODDL_WORKER", "0")) % 2:
        os.environ["CODDL_HOST"] = "127.0.0.2"
    asked = os.environ.get("FAULT") or os.environ.get("HOLD") or "-1:"
    worker, _, point = asked.partition(":")
    if point.endswith(("-exchange", "-norm")):
        mark_passes()
    if worker != os.environ.get("CODDL_WORKER"):
        return
    if point == "fails-alone":
        break_exchange_once()
        return
    if point.startswith("misses-norm-"):
        miss_norm_once(int(point.removeprefix("misses-norm-")))
        return
    if point == "misses-share":
        miss_share_once()
        return
    when, _, what = point.partition("-")
    told = lambda _self, kind, **_: kind == what  # noqa: E731
    match what:
        case "arrived" | "ready" | "swapped" | "image":
            around(supervisor_link.SupervisorLink, "tell", when, told)
        case "commit" | "prepare" | "regroup":
            around(
                supervisor_link.SupervisorLink,
                "_on",
                when,
                lambda _self, message: message["do"] == what,
            )
        case "write":
            around(handover.Handover, "write", when, lambda *_, **__: True)
        case "load":
            around(handover.Handover, "load", when, lambda *_, **__: True)
        case "restore":
            around(state.TrainingState, "restore", when, lambda *_, **__: True)
        case "exchange":
            around(strict_exchange.StrictExchange, "finish", when, late)
            around(exchange.Exchange, "end_backward", when, late_among_others)
        case "norm":
            around(syncnorm.SyncNorm, "_statistics", when, late_among_others)
        case "norm-backward":
            around(syncnorm.SyncNorm, "scaled_total", when, late)
        case "apply":
            around(strict_session.StrictSession, "_apply", when, late)
            around(session.TrainingSession, f"_{when}_update", "before", late)
        case "ahead":
            around(membership.Membership, "_reads_ahead", when, lambda *_, **__: True)
        case "adopt":
            around(
                membership.Membership, "_adopt", when, lambda _s, _link, to, _groups: to.number > 1
            )
        case unknown:
            raise AssertionError(unknown)
