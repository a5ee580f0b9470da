"""When a group is built that can't be built at once, by a clock that is told the time."""

from collections.abc import Callable, Hashable

import pytest

from coddl.runtime.supervisor.due_group import IMAGE_WAIT_S, DueGroup
from coddl.runtime.supervisor.generations import GroupPlan, Prepare, Regroup


class Situation:
    """A due group, and what it waits for; a `SupervisorLoop` as far as it uses one."""

    def __init__(self) -> None:
        self.has_store, self.is_state_coming = True, False
        self.built: list[Prepare | Regroup] = []
        self.alarms: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self.group = DueGroup(
            self,  # type: ignore[arg-type]
            self.built.append,
            has_store=lambda: self.has_store,
            is_state_coming=lambda: self.is_state_coming,
        )

    def now_s(self) -> float:
        return 100.0

    def alarm(self, name: Hashable, at_s: float, action: Callable[[], None]) -> None:
        self.alarms[name] = (at_s, action)

    def silence(self, name: Hashable) -> None:
        self.alarms.pop(name, None)


def prepare(*, fresh: bool) -> Prepare:
    return Prepare(GroupPlan(1, (0,), (1,), (), fresh, (0,)))


@pytest.mark.parametrize("fresh", [True, False])
def test_a_group_is_built_once_there_is_a_store(fresh: bool) -> None:
    now = Situation()
    now.has_store = False
    now.group.order(command := prepare(fresh=fresh))
    assert not now.built
    now.has_store = True
    now.group.look()
    now.group.look()
    assert now.built == [command], "once"


def test_a_training_that_begins_anew_waits_for_a_newer_state() -> None:
    now = Situation()
    now.is_state_coming = True
    now.group.order(command := prepare(fresh=True))
    assert not now.built
    now.is_state_coming = False
    now.group.look()
    assert now.built == [command]
    assert not now.alarms


def test_workers_that_have_state_wait_for_none() -> None:
    now = Situation()
    now.is_state_coming = True
    now.group.order(command := prepare(fresh=False))
    assert now.built == [command]


def test_an_older_state_has_to_do_in_the_end() -> None:
    now = Situation()
    now.is_state_coming = True
    now.group.order(first := prepare(fresh=True))
    at_s, alarm = now.alarms["image"]
    assert at_s == 100.0 + IMAGE_WAIT_S
    alarm()
    assert now.built == [first]
    now.group.order(prepare(fresh=True))
    assert now.built == [first], "the next one waits again"


def test_a_cancelled_group_is_not_built() -> None:
    now = Situation()
    now.is_state_coming = True
    now.group.order(prepare(fresh=True))
    now.group.cancel()
    now.is_state_coming = False
    now.group.look()
    assert not now.built
    assert not now.alarms
