"""The fit of links to sweeps, and inspections as JSON."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from coddl.core.errors import UserError
from coddl.core.speed.inspection import (
    ExchangeFactor,
    ExchangeTime,
    Inspection,
    LinkSpeed,
    SendTime,
    fitted_link,
    fitted_send,
    median_error,
    read_inspection,
)

SIZES = tuple(1 << bits for bits in range(10, 27, 2))
ETHERNET = LinkSpeed(1.2, 40.0, 60.0, "gloo")
NVLINK = LinkSpeed(180.0, 3.0, 15.0, "nccl")


def sweep(
    link: LinkSpeed, workers: tuple[int, ...] = (2, 3, 4), noise: Random | None = None
) -> list[ExchangeTime]:
    """Times as the link would give them; with noise, up to 10 % longer or shorter."""

    def factor() -> float:
        return 1.0 if noise is None else noise.uniform(0.9, 1.1)

    return [ExchangeTime(n, x, link.all_reduce_s(n, x) * factor()) for n in workers for x in SIZES]


def test_an_all_reduce_is_a_ring() -> None:
    link = LinkSpeed(gb_s=2.0, latency_us=10.0, call_us=100.0, backend="gloo")
    assert link.all_reduce_s(4, 1e9) == pytest.approx(100e-6 + 6 * 10e-6 + 6 / 4 * 0.5)
    assert link.all_reduce_s(1, 1e9) == 0.0, "a worker alone has no one to send to"


@pytest.mark.parametrize("link", [ETHERNET, NVLINK], ids=["ethernet", "nvlink"])
def test_a_sweep_without_noise_gives_the_link_back(link: LinkSpeed) -> None:
    found = fitted_link(sweep(link), link.backend)
    assert found.gb_s == pytest.approx(link.gb_s, rel=1e-3)
    assert found.latency_us == pytest.approx(link.latency_us, rel=1e-3)
    assert found.call_us == pytest.approx(link.call_us, rel=1e-3)
    assert median_error(found) < 1e-6


@pytest.mark.parametrize("link", [ETHERNET, NVLINK], ids=["ethernet", "nvlink"])
@pytest.mark.parametrize("seed", range(20))
def test_noise_of_ten_percent_moves_predictions_by_less(link: LinkSpeed, seed: int) -> None:
    found = fitted_link(sweep(link, noise=Random(seed)), link.backend)
    for n in (2, 4, 8):
        for x in (1 << 10, 1 << 20, 25 << 20, 1 << 28):
            assert found.all_reduce_s(n, x) == pytest.approx(link.all_reduce_s(n, x), rel=0.1)


def test_one_exchange_that_was_held_up_changes_little() -> None:
    times = sweep(ETHERNET)
    slow = [*times[:4], times[4]._replace(seconds=10 * times[4].seconds), *times[5:]]
    found = fitted_link(slow, "gloo")
    for x in (1 << 12, 1 << 20, 1 << 26):
        assert found.all_reduce_s(3, x) == pytest.approx(ETHERNET.all_reduce_s(3, x), rel=0.15)


def burst_s(workers: int, bytes_: int) -> float:
    """Time on a link of 20 MB/s that lets the first 64 KB of an exchange pass at once."""
    sent = 2 * (workers - 1) / workers * bytes_
    return 4e-4 * 2 * (workers - 1) + max(0.0, sent - (1 << 16)) / 20e6


def test_a_link_that_lets_short_bursts_pass_is_no_line_and_known_as_it_is() -> None:
    times = [ExchangeTime(n, x, burst_s(n, x)) for n in (2, 3, 4) for x in SIZES]
    found = fitted_link(times, "gloo")
    for n in (2, 3, 4):
        for x in (1 << 12, 1 << 20, 1 << 23, 1 << 26):
            assert found.all_reduce_s(n, x) == pytest.approx(burst_s(n, x), rel=0.06)
    plain = replace(found, factors=())
    assert max(abs(plain.all_reduce_s(2, x) / burst_s(2, x) - 1.0) for x in SIZES) > 0.15


def test_between_what_was_measured_factors_are_interpolated() -> None:
    link = replace(
        ETHERNET,
        factors=(
            ExchangeFactor(2, 1 << 10, 1.0),
            ExchangeFactor(2, 1 << 20, 4.0),
            ExchangeFactor(8, 1 << 10, 1.0),
            ExchangeFactor(8, 1 << 20, 16.0),
        ),
    )
    assert link.factor(2, 1 << 15) == pytest.approx(2.0)
    assert link.factor(4, 1 << 20) == pytest.approx(8.0)
    assert link.factor(2, 1 << 30) == pytest.approx(4.0), "beyond, it stays what it is"
    assert link.factor(64, 1) == pytest.approx(1.0)
    assert link.all_reduce_s(8, 1 << 20) == pytest.approx(16 * ETHERNET.all_reduce_s(8, 1 << 20))


def test_small_exchanges_that_were_held_up_do_not_make_the_latency_long() -> None:
    times = sweep(ETHERNET)
    held_up = [
        each._replace(seconds=each.seconds + 3e-3) if each.bytes_ == SIZES[0] else each
        for each in times
    ]
    found = fitted_link(held_up, "gloo")
    for n in (2, 3, 4):
        least_s = ETHERNET.all_reduce_s(n, SIZES[0])
        assert found.all_reduce_s(n, SIZES[0]) == pytest.approx(least_s, rel=0.2)


def test_no_part_is_below_zero() -> None:
    # Times that fall with the number of workers: more of them can't have a negative latency.
    times = [ExchangeTime(n, x, 1e-3 / n + x * 1e-9) for n in (2, 3, 4) for x in SIZES]
    found = fitted_link(times, "gloo")
    assert found.latency_us == 0.0
    assert found.call_us > 0.0
    assert found.gb_s > 0.0


def test_bandwidth_that_noise_hides_is_that_of_the_fastest_exchange() -> None:
    times = [ExchangeTime(2, x, 1e-3 - x * 1e-9) for x in (1024, 2048, 4096)]
    assert fitted_link(times, "gloo").gb_s == pytest.approx(4096e-9 / (1e-3 - 4096e-9))


def test_with_one_number_of_workers_the_call_is_that_of_another_link() -> None:
    times = sweep(ETHERNET, workers=(2,))
    halves = fitted_link(times, "gloo")
    assert halves.call_us == pytest.approx(2 * halves.latency_us)
    known = fitted_link(times, "gloo", call_s=60e-6)
    assert known.call_us == pytest.approx(60.0)
    assert known.latency_us == pytest.approx(40.0, rel=1e-3)
    for x in SIZES:
        assert halves.all_reduce_s(2, x) == pytest.approx(known.all_reduce_s(2, x), rel=1e-3)
    several = fitted_link(sweep(ETHERNET), "gloo", call_s=500e-6)
    assert several.call_us == pytest.approx(60.0, rel=1e-3), "it can be measured: it is"


def test_a_call_that_takes_longer_than_an_exchange_is_cut() -> None:
    found = fitted_link(sweep(ETHERNET, workers=(2,)), "gloo", call_s=1.0)
    assert found.call_us == pytest.approx(1e6 * ETHERNET.all_reduce_s(2, SIZES[0]))
    assert found.latency_us == 0.0


def test_messages_are_fitted_by_themselves() -> None:
    gb_s, latency_us = fitted_send([SendTime(x, 30e-6 + x / 2e9) for x in SIZES])
    assert gb_s == pytest.approx(2.0)
    assert latency_us == pytest.approx(30.0)


WHOLE = Inspection(
    hardware="2 x NVIDIA H200, driver 580.1",
    links={
        "node": fitted_link(sweep(NVLINK), "nccl", sent=[SendTime(1024, 2e-5)]),
        "cluster": ETHERNET,
    },
    update_gb_s={"gpu": 1500.0, "cpu": 2.5},
    copy_gb_s={"to_host": 50.0, "from_host": 52.0},
    suspend_s=0.07,
)


@pytest.mark.parametrize("suspend_s", [0.07, None])
def test_an_inspection_survives_json(suspend_s: float | None) -> None:
    whole = replace(WHOLE, suspend_s=suspend_s)
    assert read_inspection(json.dumps(whole.as_data())) == whole


def without(key: str) -> dict[str, Any]:
    return {k: v for k, v in WHOLE.as_data().items() if k != key}


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "list indices"),
    "nothing": (None, "NoneType"),
    "another version": (WHOLE.as_data() | {"version": 2}, "its version is 2, and 1 is known"),
    "no links": (without("links"), "'links' is missing"),
    "a link without a speed": (WHOLE.as_data() | {"links": {"node": {}}}, "'gb_s' is missing"),
    "a rate of 0": (WHOLE.as_data() | {"copy_gb_s": {"to_host": 0}}, "0 is not a number above 0"),
    "a rate that is none": (WHOLE.as_data() | {"update_gb_s": {"cpu": "nan"}}, "nan is not a"),
    "a factor of 0": (
        WHOLE.as_data() | {"links": {"node": ETHERNET.as_data() | {"factors": [[2, 1024, 0]]}}},
        "0 is not a number above 0",
    ),
    "a list of rates": (WHOLE.as_data() | {"update_gb_s": [1]}, "items"),
}


@pytest.mark.parametrize(("data", "because"), WRONG.values(), ids=WRONG.keys())
def test_what_is_no_inspection_is_refused(data: Any, because: str) -> None:
    with pytest.raises(UserError) as refused:
        Inspection.from_data(data)
    assert because in refused.value.because


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(UserError, match="it is not JSON"):
        read_inspection("hello")
