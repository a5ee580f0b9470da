"""The lease: until when devices are ours, by nobody's clock but the one that is asked."""

import pytest

from coddl.agent.node_lease import LeaseState, NodeLease

LEASE_S = 100.0  # so the margin is 25 s, and 6 s are for ending what runs


def held(*answered_s: float) -> NodeLease:
    """A lease that was welcomed at 0, with beats sent at these times and answered."""
    lease = NodeLease()
    lease.welcome(LEASE_S, 0.0)
    for at_s in answered_s:
        lease.renewed(lease.beat(at_s))
    return lease


CASES: dict[str, tuple[NodeLease, float, LeaseState, float | None]] = {
    "before the first welcome nothing may run": (NodeLease(), 5.0, "none", None),
    "after the welcome it is held": (held(), 74.9, "held", 75.0),
    "in the margin jobs are to leave": (held(), 75.0, "closing", 94.0),
    "whatever runs must end so as to be gone at its end": (held(), 94.0, "over", 94.0),
    "a beat renews it from when it was sent": (held(50.0), 124.9, "held", 125.0),
    "and not from when it was answered": (held(50.0), 125.0, "closing", 144.0),
}


@pytest.mark.parametrize(("lease", "now_s", "want", "wake_s"), CASES.values(), ids=CASES.keys())
def test_the_standing(
    lease: NodeLease, now_s: float, want: LeaseState, wake_s: float | None
) -> None:
    assert lease.standing(now_s) == want
    assert lease.wake_at_s(now_s) == wake_s


def test_a_beat_without_an_answer_renews_nothing() -> None:
    lease = held()
    lease.beat(90.0)
    assert lease.standing(100.0) == "over"


def test_an_answer_to_an_older_beat_does_not_shorten_it() -> None:
    lease = held()
    first, second = lease.beat(10.0), lease.beat(40.0)
    lease.renewed(second)
    lease.renewed(first)  # late
    assert lease.standing(133.0) == "closing"
    lease.welcome(LEASE_S, 20.0)  # of a hello that was slow
    assert lease.standing(133.0) == "closing"


def test_answers_to_beats_of_another_connection_count_for_nothing() -> None:
    lease = held()
    stale = lease.beat(30.0)
    lease.welcome(LEASE_S, 31.0)
    lease.renewed(stale)
    lease.renewed(99)  # a ghost
    assert lease.standing(131.0) == "over"


def test_an_answer_that_comes_when_all_has_ended_brings_nothing_back() -> None:
    lease = held()
    lease.end()
    lease.renewed(lease.beat(98.5))
    assert lease.standing(98.6) == "none"


@pytest.mark.parametrize("lease_s", [4.0, 100.0, 600.0])
def test_the_fence_falls_after_the_agent_should_have_ended_all_and_before_the_end(
    lease_s: float,
) -> None:
    lease = NodeLease()
    lease.welcome(lease_s, 0.0)
    assert lease.standing(lease.fence_at_s) == "over"
    assert lease_s - lease.ending_s < lease.fence_at_s < lease_s


def test_silence_counts_from_the_oldest_beat_without_an_answer() -> None:
    lease = held()
    assert lease.unanswered_s(60.0) == 0.0
    first = lease.beat(60.0)
    lease.beat(62.0)
    assert lease.unanswered_s(65.0) == 5.0
    lease.renewed(first)
    assert lease.unanswered_s(65.0) == 3.0


def test_after_its_end_only_a_welcome_begins_it_anew() -> None:
    lease = held()
    beat = lease.beat(90.0)
    lease.end()
    lease.renewed(beat)
    assert lease.standing(91.0) == "none"
    lease.welcome(LEASE_S, 200.0)
    assert lease.standing(201.0) == "held"


@pytest.mark.parametrize(("lease_s", "margin_s"), [(4.0, 1.0), (100.0, 25.0), (600.0, 30.0)])
def test_the_margin_is_a_part_of_the_lease_and_at_most_half_a_minute(
    lease_s: float, margin_s: float
) -> None:
    lease = NodeLease()
    lease.welcome(lease_s, 0.0)
    assert lease.margin_s == margin_s
